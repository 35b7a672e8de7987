"""Who goes when room is short, who comes back first, and who waits."""

from itertools import pairwise

from engine.requests import StreamState
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.small_store import SmallStore
from tests.engine.talk import AGEING_SECONDS, Talk, granted, kinds, moved, pressed, refused


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


def test_a_preempted_stream_asks_beside_the_last_token_of_another_and_not_before():
    talk = Talk()
    old, young = talk.submit(32, answer=9), talk.submit(32, first=100)
    talk.run_to_decode(granted, 2)
    talk.step(refused([young.sequence], frames_short=1))
    talk.step(granted)
    operations = talk.step(granted, [moved(young.sequence, pb.Sequence.SWAPPED)])
    while not old.ends_with_next_token:
        assert "swap_in" not in kinds(operations)
        talk.run()
        operations = talk.step(granted)
    assert len(old.margins) == 8
    assert kinds(operations) == ["swap_in"]


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


def test_under_high_pressure_lower_levels_go_before_frames_are_short_one_by_one():
    talk, store = Talk(), SmallStore(frames=60)
    low = [talk.submit(40, first=100 * at, answer=100) for at in range(3)]
    urgent = [talk.submit(40, first=1000 + 100 * at, answer=100, priority=2) for at in range(2)]
    store.step(talk)
    talk.run()
    store.step(talk, pressed(pb.PRESSURE_HIGH))
    talk.run()
    gone: dict[int, float] = {}
    for _ in range(80):
        operations = store.step(talk)
        talk.run()
        gone |= {each.swap.sequence: talk.now for each in operations if each.HasField("swap")}
        talk.now += 0.01
    # Not the urgent ones, of which none is above the other.
    assert list(gone) == [each.sequence for each in reversed(low)]
    assert all(after - before > 0.19 for before, after in pairwise(gone.values()))
    assert [each.state for each in urgent] == [StreamState.RUNNING] * 2
    assert store.free > 40


def test_of_equals_none_goes_for_pressure_alone_nor_while_somebody_waits():
    talk, store = Talk(), SmallStore(frames=60)
    for at, priority in enumerate((1, 1, 0)):
        talk.submit(40, first=100 * at, answer=100, priority=priority)
    talk.run_to_decode(store.answer, 3)
    for pressure in (pb.PRESSURE_FULL, pb.PRESSURE_LOW):
        store.step(talk, pressed(pressure))
        assert "swap_out" not in kinds(store.step(talk))
    talk.scheduler.cancel(talk.scheduler.streams[-1], "the test")
    store.step(talk, pressed(pb.PRESSURE_HIGH))
    assert kinds(store.step(talk)) == []


def test_what_others_have_gained_by_waiting_is_no_reason_to_go_for_pressure():
    talk, store = Talk(), SmallStore(frames=60)
    old = talk.submit(40, answer=100)
    talk.now += 5 * AGEING_SECONDS
    store.step(talk)
    young = talk.submit(40, first=100, answer=100)
    talk.run_to_decode(store.answer, 2)
    assert old.level > young.level
    store.step(talk, pressed(pb.PRESSURE_HIGH))
    assert "swap_out" not in kinds(store.step(talk))


def test_who_went_ahead_of_need_stays_away_while_pressure_lasts_and_is_asked_back_one_step_early():
    talk, store = Talk(), SmallStore(frames=60)
    low = talk.submit(40, answer=100)
    urgent = talk.submit(40, first=100, answer=12, priority=1)
    short = talk.submit(40, first=200, answer=6, priority=1)
    talk.run_to_decode(store.answer, 3)
    store.step(talk, pressed(pb.PRESSURE_HIGH))
    assert kinds(store.step(talk)) == ["swap_out"]
    while not short.is_done:
        talk.run()
        assert "swap_in" not in kinds(store.step(talk))
    while not urgent.ends_with_next_token:
        talk.run()
        assert low.state is StreamState.PREEMPTED
        operations = store.step(talk)
    # It is on its way while the other's last token is computed, and runs with the step that frees that.
    assert (kinds(operations)[-1], low.state) == ("swap_in", StreamState.LOADING)
    assert talk.run() == ([urgent], 1)
    assert urgent.is_done
    assert "free" in kinds(store.step(talk))
    assert talk.run() == ([low], 1)


def test_it_comes_back_at_once_when_pressure_is_low_again_and_another_has_left():
    talk, store = Talk(), SmallStore(frames=60)
    low = talk.submit(40, answer=100)
    talk.submit(40, first=100, answer=100, priority=1)
    short = talk.submit(40, first=200, answer=6, priority=1)
    talk.run_to_decode(store.answer, 3)
    store.step(talk, pressed(pb.PRESSURE_HIGH))
    store.step(talk)
    while not short.is_done:
        talk.run()
        store.step(talk)
    store.step(talk, pressed(pb.PRESSURE_LOW))
    assert kinds(store.step(talk)) == ["swap_in"]
    assert low.state is StreamState.LOADING
