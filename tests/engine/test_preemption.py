"""Who goes when room is short, who comes back first, and who waits."""

from engine.requests import StreamState
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.talk import Talk, granted, kinds, moved, refused


def test_growth_that_finds_no_room_swaps_out_the_most_recent_of_the_lowest_priority():
    talk = Talk()
    old, urgent, young = talk.submit(30), talk.submit(40, first=100, priority=1), talk.submit(40, first=200)
    talk.run_to_decode(granted, 3)
    talk.run()
    talk.run()
    talk.step(refused([old.sequence], frames_short=1))
    operations = talk.step(refused([old.sequence], frames_short=0))
    assert kinds(operations) == ["swap_out", "grow"]
    assert operations[0].swap.sequence == young.sequence
    assert operations[0].swap.filled_tokens == 42
    assert operations[0].swap.mode == pb.SwapRequest.AUTO
    assert young.state is StreamState.PREEMPTED
    # Who has room goes on meanwhile.
    assert talk.run() == ([urgent], 1)


def test_a_preempted_stream_comes_back_when_it_is_away_and_another_has_left():
    talk = Talk()
    old, young = talk.submit(32, answer=4), talk.submit(32, first=100)
    talk.run_to_decode(granted, 2)
    talk.step(refused([young.sequence], frames_short=1))
    assert kinds(talk.step(granted)) == ["swap_out"]
    talk.run()
    # It is away, but nobody has left since: it would only push the other one out.
    assert kinds(talk.step(granted, [moved(young.sequence, pb.Sequence.SWAPPED)])) == []
    talk.run()
    assert old.is_done
    assert kinds(talk.step(granted)) == ["free", "swap_in"]
    assert young.state is StreamState.LOADING
    assert talk.scheduler.is_waiting
    talk.step(granted, [moved(young.sequence, pb.Sequence.RESIDENT, [4, 5], valid=32)])
    assert (young.state, young.computed, young.preemptions) == (StreamState.RUNNING, 32, 1)
    assert talk.changed == [young]


def test_none_overtakes_a_stream_that_comes_back():
    talk = Talk()
    old, young = talk.submit(30, answer=4), talk.submit(30, first=100)
    talk.run_to_decode(granted, 2)
    talk.run()
    talk.run()
    late = talk.submit(32, first=200)
    talk.step(refused([young.sequence, 3], frames_short=1))
    assert kinds(talk.step(granted)) == ["swap_out"]
    talk.run()
    assert old.is_done
    operations = talk.step(granted, [moved(young.sequence, pb.Sequence.SWAPPED)])
    assert kinds(operations) == ["free"]
    assert kinds(talk.step(granted)) == ["swap_in"]
    assert kinds(talk.step(granted)) == ["allocate"]
    assert (young.state, late.state) == (StreamState.LOADING, StreamState.RUNNING)


def test_when_room_is_coming_nobody_goes():
    talk = Talk()
    streams = [talk.submit(30), talk.submit(30, first=100)]
    talk.run_to_decode(granted, 2)
    talk.run()
    talk.run()
    for _ in range(3):
        operations = talk.step(refused([each.sequence for each in streams], frames_short=0))
        assert kinds(operations)[-1] == "grow"
        assert list(operations[-1].grow.sequences) == [each.sequence for each in streams]
    assert talk.run() == ([], 0)
    assert talk.scheduler.is_waiting


def test_a_new_stream_preempts_none_of_its_own_priority():
    talk = Talk()
    talk.submit(32)
    talk.run_to_decode(granted, 1)
    equal = talk.submit(32, first=100)
    dropped = pb.Sequence.DROPPED
    first = talk.step(refused([2], frames_short=2, state=dropped))[-1]
    assert list(first.allocate.block_keys) == equal.chain.keys[:1]
    again = talk.step(refused([2], frames_short=2, state=dropped))
    assert kinds(again) == ["allocate"]
    assert not again[0].allocate.block_keys  # The store has kept them.


def test_a_new_stream_of_higher_priority_does():
    talk = Talk()
    low = talk.submit(20)
    talk.run_to_decode(granted, 1)
    urgent = talk.submit(32, first=100, priority=5)
    talk.step(refused([2], frames_short=2, state=pb.Sequence.DROPPED))
    operations = talk.step(granted)
    assert kinds(operations) == ["swap_out", "allocate"]
    assert (low.state, urgent.state) == (StreamState.PREEMPTED, StreamState.RUNNING)
