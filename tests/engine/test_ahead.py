"""Steps that are sent while the pass before them runs; the answer comes before that is over, or after."""

import random

import pytest

from engine.digests import Digests
from engine.journeys import note_given
from engine.requests import Stream, StreamState
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.small_store import SmallStore
from tests.engine.talk import BLOCK_TOKENS, Talk, granted, kinds, moved, refused

both_orders = pytest.mark.parametrize("answer_first", [False, True])


@both_orders
def test_room_is_asked_for_a_token_that_is_not_there_yet_so_nobody_waits_for_it(answer_first):
    talk = Talk()
    stream = talk.submit(30, answer=40)
    talk.step(granted)
    grown = []
    for passes in range(1, 41):
        operations = talk.step_ahead(granted, answer_first=answer_first)
        grown += [each.grow.token_counts[0] for each in operations if each.HasField("grow")]
        assert len(stream.margins) == passes
    assert stream.is_done
    # The last token is not fed to the model, and 70 tokens with it are 69 in the blocks.
    assert grown == [48, 64, 80]


@both_orders
def test_none_is_asked_for_behind_the_last_token(answer_first):
    talk = Talk()
    talk.submit(30, answer=3)
    talk.step(granted)
    operations = [talk.step_ahead(granted, answer_first=answer_first) for _ in range(3)]
    assert [kinds(each) for each in operations] == [[], ["commit"], []]
    assert kinds(talk.step(granted)) == ["commit", "free"]


@both_orders
def test_who_is_swapped_out_while_it_is_computed_takes_that_along(answer_first):
    talk = Talk()
    old, young = talk.submit(30), talk.submit(40, first=100)
    talk.run_to_decode(granted, 2)
    talk.step(refused([old.sequence], frames_short=1))
    talk.run()
    talk.step(refused([old.sequence], frames_short=1))
    [out] = [
        each.swap for each in talk.step_ahead(granted, answer_first=answer_first) if each.HasField("swap")
    ]
    assert (out.sequence, out.filled_tokens) == (young.sequence, young.computed)
    assert (young.state, young.tokens_pending) == (StreamState.PREEMPTED, 1)


def test_of_who_was_dropped_beside_the_pass_that_filled_its_blocks_nothing_is_to_be_proven():
    talk = Talk()
    old, young = talk.submit(30), talk.submit(100, first=100)
    talk.step(granted)
    talk.run()
    while old.has_room:
        old.take(7)
    talk.step(refused([old.sequence], frames_short=1))

    def dropped(operation: pb.Operation) -> pb.Result:
        if operation.WhichOneof("kind") != "swap":
            return granted(operation)
        return pb.Result(swap=pb.SwapResponse(outcome=pb.OUTCOME_OK, state=pb.Sequence.DROPPED))

    assert "swap_out" in kinds(talk.step_ahead(dropped, answer_first=False))
    asked = talk.step(granted)
    assert [each.commit.sequence for each in asked if each.HasField("commit")] == [young.sequence]
    told: list[bytes] = []
    digests = Digests(16, tell=told.extend)
    note_given(digests, asked, talk.tables, lambda frame, size: memoryview(bytes(size)), BLOCK_TOKENS)
    assert told == []


@both_orders
def test_blocks_are_committed_only_when_their_pass_is_over(answer_first):
    talk = Talk()
    talk.submit(100)
    talk.step(granted)
    assert talk.step_ahead(granted, answer_first=answer_first) == []
    [commit] = talk.step_ahead(granted, answer_first=answer_first)
    assert len(commit.commit.block_keys) == 6


def test_who_was_cancelled_before_the_answer_stays_so():
    talk = Talk()
    old, young, new = talk.submit(30), talk.submit(40, first=100), talk.submit(20, first=200)
    talk.run_to_decode(granted, 3)
    talk.step(refused([old.sequence], frames_short=1))
    talk.step(granted)
    talk.step(granted, [moved(new.sequence, pb.Sequence.SWAPPED)])
    gone = new.sequence
    talk.scheduler.cancel(young, "the test")
    late = talk.submit(20, first=300)
    asked = talk.scheduler.operations(talk.tables, talk.now)
    assert kinds(asked)[-2:] == ["free", "swap_in"]
    for stream in (new, late):
        talk.scheduler.cancel(stream, "the test")
    response = pb.StepResponse(results=[granted(each) for each in asked])
    talk.tables.apply(asked, response)
    assert talk.scheduler.take(asked, response) == []
    assert [each.state for each in (young, new, late)] == [StreamState.CANCELLED] * 3
    [*_, free] = talk.step(granted)
    assert list(free.free.sequences) == [gone]
    assert talk.scheduler.streams == [old]


@pytest.mark.parametrize("seed", range(8))
def test_with_either_order_drawn_all_are_served_and_all_frames_come_back(seed):
    draw = random.Random(seed)
    talk, store = Talk(running_max=6), SmallStore(frames=40)
    streams: list[Stream] = []
    for _ in range(4000):
        if len(streams) < 40 and draw.random() < 0.3:
            streams.append(
                talk.submit(
                    draw.randint(1, 400),
                    first=1000 * len(streams),
                    answer=draw.randint(1, 60),
                    priority=draw.randint(0, 2),
                    user=draw.choice("abc"),
                )
            )
        if draw.random() < 0.02 and streams:
            talk.scheduler.cancel(draw.choice(streams), "the test")
        if draw.random() < 0.2:
            store.step(talk)
            talk.run()
        else:
            store.step_ahead(talk, answer_first=draw.random() < 0.5)
        for stream in streams:
            assert stream.is_done or stream.computed <= max(stream.room, len(stream.request.prompt))
        if len(streams) == 40 and all(each.is_done for each in streams):
            break
    assert len(streams) == 40
    served = [each for each in streams if not each.reason]
    assert all(len(each.margins) == each.request.max_new_tokens for each in served)
    assert len(served) > 20
    assert sum(each.preemptions for each in streams) > 0
    store.step(talk)
    store.step(talk)
    assert (store.free, store.held, store.away) == (store.frames, {}, {})
