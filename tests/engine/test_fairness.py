"""Whose turn it is: users take turns by tokens, waiting raises, and nobody waits for ever."""

import random
from collections import Counter
from itertools import pairwise

import pytest

from engine.requests import CHUNK_TOKENS, Stream
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.small_store import SmallStore
from tests.engine.talk import AGEING_SECONDS, BLOCK_TOKENS, Talk, granted

SEEDS = range(5)


def admitted(streams: list[Stream]) -> list[int]:
    """Which of them, in the order of their admission."""
    return [streams.index(each) for each in sorted(streams, key=lambda each: each.place) if each.place]


def run(talk: Talk, store: SmallStore) -> None:
    store.step(talk)
    talk.run()


def test_users_take_turns_whoever_asked_for_more_and_first():
    talk = Talk(running_max=2)
    streams = [talk.submit(40, first=100 * at, user="a") for at in range(6)]
    streams += [talk.submit(40, first=1000 + 100 * at, user="b") for at in range(2)]
    talk.step(granted)
    # Two places, one each: the first one's prompt counts while the second is chosen.
    assert admitted(streams) == [0, 6]
    while not all(each.is_done for each in streams):
        talk.step(granted)
        talk.run()
    assert sorted(admitted(streams)[:4]) == [0, 1, 6, 7]
    assert admitted(streams)[4:] == [2, 3, 4, 5]


@pytest.mark.parametrize("seed", SEEDS)
def test_while_users_have_more_to_ask_they_are_served_the_same_number_of_tokens(seed):
    """The bound of the paper: twice what may be under way at once."""
    draw = random.Random(seed)
    talk, store = Talk(running_max=4), SmallStore(frames=60)
    sizes = {"long": (200, 24), "short": (20, 6), "talker": (10, 60)}
    served: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    streams: list[Stream] = []
    bound = 2 * max(200 * 4, 2 * 4 * 60)
    for step in range(1500):
        for user, (prompt, answer) in sizes.items():
            if waiting[user] < 4:
                first = 1000 * len(streams)
                streams.append(
                    talk.submit(
                        draw.randint(prompt // 2, prompt),
                        first=first,
                        answer=draw.randint(answer // 2, answer),
                        user=user,
                    )
                )
        run(talk, store)
        waiting = Counter(each.request.user for each in streams if not each.place)
        served = Counter()
        for each in streams:
            if each.place:
                served[each.request.user] += len(each.request.prompt) + 2 * len(each.margins)
        assert max(served.values()) - min(served.values()) <= bound, step
    assert min(served.values()) > 3 * bound


def test_a_newcomer_is_served_next_and_has_no_claim_on_what_was_before():
    talk = Talk(running_max=1)
    old = {user: [talk.submit(300, user=user, answer=2) for _ in range(20)] for user in ("a", "b")}
    while sum(each.is_done for each in old["a"]) < 8:
        talk.step(granted)
        talk.run()
    new = [talk.submit(300, user="c", answer=2) for _ in range(20)]
    before = {user: sum(each.is_done for each in streams) for user, streams in old.items()}
    while not new[5].is_done:
        talk.step(granted)
        talk.run()
    for user, streams in old.items():
        assert 4 <= sum(each.is_done for each in streams) - before[user] <= 7


def test_what_was_cached_counts_for_nothing():
    talk = Talk(running_max=1)
    cached = [talk.submit(161, first=1000 * at, user="cached", answer=1) for at in range(12)]
    plain = [talk.submit(161, first=10**5 + 1000 * at, user="plain", answer=1) for at in range(2)]
    known = {stream.chain.keys[0] for stream in cached}

    def answer(operation: pb.Operation) -> pb.Result:
        is_known = known & set(operation.allocate.block_keys)
        return granted(operation, cached=144 if is_known else 0)

    while not plain[1].place:
        talk.step(answer)
        talk.run()
    # 17 tokens of each were computed, and 161 of the other's first.
    assert sum(bool(each.place) for each in cached) == 10


def test_a_low_priority_among_endless_higher_ones_has_its_turn_and_no_more_than_that():
    talk = Talk(running_max=1)
    low = [talk.submit(20, first=100 * at, answer=1) for at in range(10)]
    urgent = [talk.submit(20, priority=3, answer=1)]
    admissions: list[float] = []
    while talk.now < 200:
        urgent.append(talk.submit(20, priority=3, answer=1))
        talk.step(granted)
        talk.run()
        talk.now += 1.0
        if sum(bool(each.place) for each in low) > len(admissions):
            admissions.append(talk.now)
    # One each time that they have risen above the others' three, although all ten have waited.
    assert len(admissions) == 4
    assert all(
        4 * AGEING_SECONDS <= after - before <= 4 * AGEING_SECONDS + 2
        for before, after in pairwise([0.0, *admissions])
    )


def test_waiting_gives_a_turn_and_no_right_to_push_others_out():
    talk, store = Talk(), SmallStore(frames=8)
    running = talk.submit(100, answer=20)
    run(talk, store)
    waiting = talk.submit(60, first=500)
    talk.now += 100 * AGEING_SECONDS
    for _ in range(5):
        run(talk, store)
    assert (running.preemptions, waiting.place) == (0, 0)


def test_one_who_was_admitted_by_waiting_is_not_pushed_out_by_those_it_has_waited_for():
    talk, store = Talk(), SmallStore(frames=8)
    low = talk.submit(100, answer=20)
    talk.now += 3 * AGEING_SECONDS
    run(talk, store)
    urgent = talk.submit(60, first=500, priority=3)
    for _ in range(5):
        run(talk, store)
    assert (low.preemptions, urgent.place) == (0, 0)


def test_a_branch_has_not_waited_since_the_beginning_of_time():
    talk = Talk()
    talk.now = 1000 * AGEING_SECONDS
    parent = talk.submit(30)
    talk.run_to_decode(granted, 1)
    branch = talk.scheduler.branch(parent)
    talk.step(granted)
    assert talk.scheduler._order.level(branch, talk.now + AGEING_SECONDS) == 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("of_whom", ["one user", "ever new users"])
def test_a_long_request_among_endless_short_ones_starts_within_a_bounded_number_of_steps(seed, of_whom):
    draw = random.Random(seed)
    talk, store = Talk(running_max=8), SmallStore(frames=260)
    short: list[Stream] = []

    def submit_short() -> None:
        user = "" if of_whom == "one user" else f"u{len(short)}"
        tokens = draw.randint(20, 400)
        short.append(
            talk.submit(tokens, first=5000 + 500 * len(short), answer=draw.randint(1, 40), user=user)
        )

    def step() -> None:
        while sum(not each.place for each in short) < 12:
            submit_short()
        run(talk, store)
        talk.now += 0.05

    for _ in range(50):
        step()
    # Its user has been served much more than any other.
    talk.submit(600, answer=1, user="long")
    for _ in range(50):
        step()
    talk.scheduler._order.shares.note_prompt("long", 10**6)
    long = talk.submit(4000, answer=10, user="long")
    steps = 0
    while not long.margins:
        step()
        steps += 1
        # Its turn comes by ageing; those who run end, each by its prompt and answer; then its own prompt.
        assert steps <= 2 * AGEING_SECONDS / 0.05 + 8 * (2 + 40) + 2 * 4000 / CHUNK_TOKENS
    assert long.preemptions == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_working_set_of_three_pools_is_not_swapped_to_and_fro(seed):
    draw = random.Random(seed)
    talk, store = Talk(running_max=64), SmallStore(frames=100)
    streams = [
        talk.submit(draw.randint(50, 150), first=1000 * at, answer=draw.randint(50, 150), user=f"u{at % 3}")
        for at in range(24)
    ]
    blocks = sum((len(each.tokens) + each.request.max_new_tokens) // 16 for each in streams)
    assert blocks > 2.5 * store.frames
    for _ in range(5000):
        before = {each for each in streams if each.preemptions and not each.is_done}
        is_new = {each for each in streams if not each.place}
        away = {each for each in before if each.state.name == "PREEMPTED"}
        run(talk, store)
        # Who was away at the start of the step comes before who was never in.
        assert not away or not any(each.place for each in is_new)
        if all(each.is_done for each in streams):
            break
    assert all(each.is_done and not each.reason for each in streams)
    # Each return is paid for by an end.
    assert 0 < sum(each.preemptions for each in streams) <= len(streams)
    tokens = sum(len(each.tokens) for each in streams)
    assert store.swapped_blocks * BLOCK_TOKENS <= tokens
