"""When the next step may be left out, and the room that is asked for so that it may."""

import random

import pytest

from engine.exchange import LEFT_OUT_MAX
from engine.requests import Stream, StreamState, Work
from engine.scheduler import Haste
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.small_store import SmallStore
from tests.engine.talk import Talk, granted, kinds, moved, pressed, refused

NEVER = pb.AllocateResponse(outcome=pb.OUTCOME_NEVER)


def haste(talk: Talk) -> Haste:
    """Of the step beside the pass that would run now."""
    return talk.scheduler.haste(talk.scheduler.next_work() or Work([]))


def decoding(*prompts: int, answer: int = 60, running_max: int = 16) -> tuple[Talk, list[Stream]]:
    """Streams with their first tokens, of which the store knows all: nobody waits for a step."""
    talk = Talk(running_max)
    streams = [talk.submit(each, first=1000 * at, answer=answer) for at, each in enumerate(prompts)]
    talk.run_to_decode(granted, len(streams))
    talk.step(granted)
    assert haste(talk) is Haste.NONE
    return talk, streams


def pass_ahead(talk: Talk, spare_tokens: int = LEFT_OUT_MAX) -> list[int]:
    """A pass, and the room that is asked for beside it."""
    operations = talk.step_ahead(granted, answer_first=False, spare_tokens=spare_tokens)
    return [each for operation in operations for each in operation.grow.token_counts]


def test_blocks_of_a_prompt_are_to_be_told_soon_and_those_of_an_answer_are_not():
    talk = Talk()
    stream = talk.submit(20, answer=60)
    talk.run_to_decode(granted, 1)
    assert haste(talk) is Haste.SOON
    talk.step(granted)
    while stream.computed < 48:
        assert haste(talk) is Haste.NONE
        talk.run()
        stream.room = 80
    assert stream.committed_blocks == 1


def test_what_has_ended_goes_back_soon():
    talk, [first, _] = decoding(20, 20)
    talk.scheduler.cancel(first, "the test")
    assert haste(talk) is Haste.SOON
    talk.step(granted)
    assert haste(talk) is Haste.NONE


def test_a_newcomer_is_not_kept_waiting():
    talk, _ = decoding(20)
    talk.submit(20, first=100)
    assert haste(talk) is Haste.NOW


def test_nor_is_who_was_swapped_out_nor_who_is_being_loaded():
    talk, [old, young] = decoding(33, 32)
    while old.has_room:
        talk.run()
    talk.step(refused([old.sequence], frames_short=1))
    talk.step(granted)
    assert young.state is StreamState.PREEMPTED
    assert haste(talk) is Haste.NOW
    talk.scheduler.cancel(old, "the test")
    talk.step(granted, [moved(young.sequence, pb.Sequence.SWAPPED)])
    talk.step(granted)
    assert [each.state for each in talk.scheduler.streams] == [StreamState.LOADING]
    assert haste(talk) is Haste.NOW
    talk.step(granted, [moved(young.sequence, pb.Sequence.RESIDENT, [1, 2, 3], young.computed)])
    assert haste(talk) is Haste.NONE


def test_nor_is_who_is_to_be_forked():
    talk = Talk()
    leader = talk.submit(20, samples=2)
    [follower] = leader.followers
    talk.run_to_decode(granted, 1)
    follower.take(7)
    talk.scheduler.fork(leader)
    leader.room = follower.room = 32
    assert haste(talk) is Haste.NOW
    assert talk.scheduler.is_behind

    def answer(operation: pb.Operation) -> pb.Result:
        is_fork = operation.WhichOneof("kind") == "fork"
        return pb.Result(fork=pb.ForkResponse(outcome=pb.OUTCOME_OK)) if is_fork else granted(operation)

    talk.step(answer)
    assert not talk.scheduler.is_behind
    assert haste(talk) is Haste.NONE


@pytest.mark.parametrize("pressure", [pb.PRESSURE_HIGH, pb.PRESSURE_FULL])
def test_under_pressure_each_step_goes(pressure):
    talk, _ = decoding(20)
    talk.step(granted, [pressed(pressure)])
    assert haste(talk) is Haste.NOW
    talk.step(granted, [pressed(pb.PRESSURE_LOW), pressed(pressure, pb.TIER_CPU)])
    assert haste(talk) is Haste.NONE


def test_who_is_to_go_goes_at_once_though_nobody_lacks_room_any_more():
    talk, [old, _] = decoding(31, 20)
    while old.has_room:
        talk.run()
    talk.step(refused([old.sequence], frames_short=1))
    talk.scheduler.cancel(old, "the test")
    assert talk.scheduler._preemption.is_pending
    assert haste(talk) is Haste.NOW


def test_room_for_the_next_pass_is_not_kept_waiting_for():
    talk, [stream, other] = decoding(29, 40)
    talk.run()
    assert (len(stream.tokens), stream.room) == (32, 32)
    assert len(other.tokens) < other.room
    # 32 tokens have room; what comes of the pass has none.
    assert haste(talk) is Haste.NOW
    talk.scheduler.cancel(stream, "the test")
    assert haste(talk) is Haste.SOON


def test_the_last_token_of_an_answer_needs_none():
    talk, [stream] = decoding(31, answer=2)
    assert (len(stream.tokens), stream.room) == (32, 32)
    assert haste(talk) is Haste.NONE
    talk.run()
    assert stream.is_done


def test_room_is_there_for_as_many_tokens_as_steps_may_be_left_out():
    # The last token that is fed is the 80th.
    talk, [stream] = decoding(20, answer=61)
    grown = []
    while not stream.is_done:
        grown += pass_ahead(talk)
        assert stream.room >= min(len(stream.tokens) + LEFT_OUT_MAX, 80)
    assert grown == [48, 64, 80]


def test_it_is_asked_for_no_sooner_than_that():
    talk, [stream] = decoding(20)
    while not pass_ahead(talk):
        pass
    # It had room for 24, one that came of the pass, and seven more; not for one more than that.
    assert len(stream.tokens) - 1 + 1 + LEFT_OUT_MAX == 33


@pytest.mark.parametrize("is_pressed", [False, True])
def test_where_memory_is_not_plenty_nobody_takes_more_than_comes_next(is_pressed):
    talk, [stream] = decoding(20, running_max=1)
    if is_pressed:
        talk.step(granted, [pressed(pb.PRESSURE_HIGH)])
    else:
        talk.submit(20, first=100)
    while len(stream.tokens) < 32:
        assert pass_ahead(talk) == []
    assert pass_ahead(talk) == [48]


def test_who_takes_room_exactly_takes_none_to_spare():
    talk = Talk()
    leader = talk.submit(20, samples=2)
    talk.step(granted)
    assert leader.takes_room_exactly
    assert pass_ahead(talk) == []
    assert leader.room == 20
    # What came of the pass has none, and none was asked for.
    assert talk.scheduler.is_behind


def test_a_prompt_of_many_chunks_needs_none_before_its_last():
    talk = Talk()
    stream = talk.submit(608, answer=60)
    talk.step(granted)
    assert stream.room == 608
    for _ in range(2):
        assert haste(talk) is not Haste.NOW
        assert pass_ahead(talk) == []
    assert stream.tokens_pending == 608 - 512
    assert haste(talk) is Haste.NOW
    assert pass_ahead(talk) == [624]


def test_nobody_goes_for_room_that_can_be_done_without():
    talk, [old, young] = decoding(26, 20)
    operations = talk.step_ahead(
        refused([old.sequence], frames_short=1), answer_first=False, spare_tokens=LEFT_OUT_MAX
    )
    assert kinds(operations) == ["grow"]
    assert kinds(talk.step_ahead(granted, answer_first=False)) == []
    # What comes next can't.
    while old.has_room:
        talk.step_ahead(refused([old.sequence], frames_short=1), answer_first=False)
    assert kinds(talk.step_ahead(granted, answer_first=False))[-2:] == ["swap_out", "grow"]
    assert young.state is StreamState.PREEMPTED


def test_nobody_ends_for_want_of_room_that_can_be_done_without():
    talk, [stream] = decoding(26)

    def answer(operation: pb.Operation) -> pb.Result:
        if operation.WhichOneof("kind") != "grow":
            return granted(operation)
        return pb.Result(grow=pb.GrowResponse(frame_counts=[0], others=[pb.GrownOtherwise(result=NEVER)]))

    while not stream.is_done:
        talk.step_ahead(answer, answer_first=False, spare_tokens=LEFT_OUT_MAX)
    # It has its 32 tokens, and one more that they gave.
    assert len(stream.tokens) == 33


@pytest.mark.parametrize("seed", range(8))
def test_whoever_has_room_has_it_still_behind_steps_that_were_left_out(seed):
    draw = random.Random(seed)
    talk, store = Talk(running_max=6), SmallStore(frames=40)
    streams: list[Stream] = []
    left_out = left_out_count = 0
    for _ in range(4000):
        if len(streams) < 30 and draw.random() < 0.2:
            tokens, answer = draw.randint(1, 200), draw.randint(1, 60)
            streams.append(talk.submit(tokens, first=1000 * len(streams), answer=answer))
        if draw.random() < 0.01 and streams:
            talk.scheduler.cancel(draw.choice(streams), "the test")
        if left_out < LEFT_OUT_MAX and haste(talk) is not Haste.NOW:
            talk.run()
            left_out, left_out_count = left_out + 1, left_out_count + 1
            assert all(each.has_room for each in talk.scheduler.streams)
        else:
            left_out = 0
            store.step_ahead(talk, answer_first=False, spare_tokens=LEFT_OUT_MAX)
        if len(streams) == 30 and all(each.is_done for each in streams):
            break
    served = [each for each in streams if not each.reason]
    assert all(len(each.margins) == each.request.max_new_tokens for each in served)
    assert len(served) > 15
    assert left_out_count > 50
    assert sum(each.preemptions for each in streams) > 0
    store.step(talk)
    store.step(talk)
    assert (store.free, store.held, store.away) == (store.frames, {}, {})


def test_the_last_frame_goes_to_who_lacks_room_and_not_to_who_asks_to_have_some_to_spare():
    talk, store = Talk(), SmallStore(frames=5)
    # In their order: the first has room for two more tokens, and the second's next one needs a block.
    first, second = talk.submit(28, answer=40), talk.submit(31, first=1000, answer=40)
    store.step(talk)
    talk.run()
    talk.run()
    assert [each.room - len(each.tokens) for each in (first, second)] == [2, 0]
    store.step_ahead(talk, answer_first=False, spare_tokens=LEFT_OUT_MAX)
    assert [each.has_room for each in (first, second)] == [True, True]
    assert not talk.scheduler._preemption.is_pending
