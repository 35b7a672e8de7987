"""Prompts that begin alike and come together: one computes the beginning, the others find it."""

from collections.abc import Callable

from engine.requests import CHUNK_TOKENS, StreamState
from engine.scheduling.awaited import AWAITED_TOKENS
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.talk import BLOCK_TOKENS, Talk, granted, kinds, refused

COMMON = 2 * CHUNK_TOKENS


class Store:
    """Answers as one that finds what was committed in an earlier step, and counts what had to be computed."""

    def __init__(self) -> None:
        self.found: set[bytes] = set()
        self.committed: set[bytes] = set()

    def __call__(self, operation: pb.Operation) -> pb.Result:
        if operation.WhichOneof("kind") == "commit":
            self.committed.update(operation.commit.block_keys)
        hit = 0
        if operation.WhichOneof("kind") == "allocate":
            keys = operation.allocate.block_keys
            hit = next((place for place, key in enumerate(keys) if key not in self.found), len(keys))
        return granted(operation, cached=hit * BLOCK_TOKENS)


def together(talk: Talk, count: int, common: int = COMMON) -> list:
    """So many prompts with a common beginning and 40 tokens of their own."""
    streams = []
    for place in range(count):
        prompt = (*range(common), *range(1000 * (place + 1), 1000 * (place + 1) + 40))
        streams.append(talk.submit_tokens(prompt))
    return streams


def run(talk: Talk, store: Store, is_done: Callable[[], bool]) -> list[list[str]]:
    asked: list[list[str]] = []
    for _ in range(100):
        if is_done():
            return asked
        asked.append(kinds(talk.step(store)))
        store.found |= store.committed
        talk.run()
    raise AssertionError("it never ends")


def test_one_computes_the_beginning_and_the_others_find_it():
    talk, store = Talk(finds_blocks=True), Store()
    first, *others = together(talk, 4)
    asked = run(talk, store, lambda: all(each.margins for each in (first, *others)))
    assert first.cached.gpu == 0
    assert [each.cached.gpu for each in others] == [COMMON] * 3
    assert [step.count("allocate") for step in asked][:4] == [1, 0, 0, 3]


def test_where_nothing_can_be_found_nobody_waits():
    talk = Talk()
    together(talk, 4)
    assert kinds(talk.step(granted)) == ["allocate"] * 4


def test_a_short_beginning_is_not_waited_for_and_a_longer_prompt_waits_for_what_is_common():
    talk = Talk(finds_blocks=True)
    together(talk, 3, common=AWAITED_TOKENS - BLOCK_TOKENS)
    assert kinds(talk.step(granted)) == ["allocate"] * 3
    talk = Talk(finds_blocks=True)
    together(talk, 3, common=AWAITED_TOKENS)
    assert kinds(talk.step(granted)) == ["allocate"]


def test_who_needs_something_else_passes_those_who_wait_for_another():
    talk = Talk(running_max=2, finds_blocks=True)
    _, waiting = together(talk, 2)
    other = talk.submit(300, first=50_000)
    talk.step(granted)
    assert waiting.state is StreamState.QUEUED
    assert other.state is StreamState.RUNNING


def test_what_turns_out_to_be_cached_lets_the_others_in_with_the_next_step_at_once():
    talk = Talk(finds_blocks=True)
    together(talk, 3)
    asked = talk.step(lambda operation: granted(operation, cached=COMMON))
    assert kinds(asked) == ["allocate"]
    assert talk.scheduler.is_behind
    assert kinds(talk.step(lambda operation: granted(operation, cached=COMMON))) == ["allocate"] * 2
    assert not talk.scheduler.is_behind


def test_a_step_that_is_sent_ahead_is_enough_until_what_is_awaited_is_there():
    talk = Talk(finds_blocks=True)
    first, _ = together(talk, 2)
    talk.step(granted)
    assert not talk.scheduler.is_behind
    behind = []
    for _ in range(2):
        talk.run()
        talk.step(granted)
        behind.append((first.committed_blocks * BLOCK_TOKENS, talk.scheduler.is_behind))
    assert behind == [(CHUNK_TOKENS, False), (COMMON, True)]


def test_when_the_one_in_front_is_cancelled_the_next_computes():
    talk = Talk(finds_blocks=True)
    first, second, third = together(talk, 3)
    talk.step(granted)
    talk.scheduler.cancel(first, "gone")
    talk.step(granted)
    talk.step(granted)
    assert second.state is StreamState.RUNNING
    assert third.state is StreamState.QUEUED


def test_one_in_front_that_finds_no_room_is_waited_for_by_those_behind_it():
    """In the order in which they came; and what it keeps nobody waits for is its blocks."""
    talk = Talk(finds_blocks=True)
    first, second = together(talk, 2)
    asked = talk.step(refused([1], 3, pb.Sequence.DROPPED))
    assert kinds(asked) == ["allocate"]
    assert kinds(talk.step(granted)) == ["allocate"]
    assert first.state is StreamState.RUNNING
    assert second.state is StreamState.QUEUED
