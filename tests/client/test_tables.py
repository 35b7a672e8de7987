"""The mirror of block tables follows what the store says, in the order in which the store did it."""

import pytest

from kvstore.client import operations as ops
from kvstore.client.errors import ClientError, SharedTail
from kvstore.client.tables import BlockTables
from kvstore.v1 import kvstore_pb2 as pb

RESIDENT, DROPPED, SWAPPED = pb.Sequence.RESIDENT, pb.Sequence.DROPPED, pb.Sequence.SWAPPED
SWAPPING_IN, SWAPPING_OUT = pb.Sequence.SWAPPING_IN, pb.Sequence.SWAPPING_OUT
OK, LATER, NEVER = pb.OUTCOME_OK, pb.OUTCOME_LATER, pb.OUTCOME_NEVER


def allocated(frames, *, first_block=0, outcome=OK, state=RESIDENT):
    response = pb.AllocateResponse(outcome=outcome, block_table=frames, first_block=first_block, state=state)
    return pb.Result(allocate=response)


def swapped(state, frames=(), *, outcome=OK):
    return pb.Result(swap=pb.SwapResponse(outcome=outcome, state=state, block_table=frames))


def moved(sequence, state, frames=()):
    return pb.Event(sequence_moved=pb.SequenceMoved(sequence=sequence, state=state, block_table=frames))


FORKED = pb.Result(fork=pb.ForkResponse(outcome=OK))
FREED = pb.Result(free=pb.FreeResponse())


def apply(tables, *pairs, events=()):
    batch = pb.EventBatch(events=events)
    response = pb.StepResponse(results=[result for _, result in pairs], events=batch)
    tables.apply([operation for operation, _ in pairs], response)


@pytest.fixture
def tables():
    """Sequence 1 is resident with 40 tokens: frames 7, 8 and half of 9."""
    made = BlockTables(16)
    apply(made, (ops.allocate(1, 40), allocated([7, 8, 9])))
    return made


def test_an_allocate_makes_a_table_and_a_later_one_goes_on_from_first_block(tables):
    assert tables.table(1) == [7, 8, 9]
    apply(tables, (ops.allocate(1, 60, known_blocks=3), allocated([4], first_block=3)))
    assert tables.table(1) == [7, 8, 9, 4]
    apply(tables, (ops.allocate(1, 60, known_blocks=4), allocated([], first_block=4)))
    assert tables.table(1) == [7, 8, 9, 4]


def test_a_splice_replaces_the_rest(tables):
    apply(tables, (ops.allocate(1, 50), allocated([5, 6], first_block=2)))
    assert tables.table(1) == [7, 8, 5, 6]


def test_a_table_with_a_hole_is_refused(tables):
    with pytest.raises(ClientError, match="3 blocks are known, the answer starts at block 4"):
        apply(tables, (ops.allocate(1, 80, known_blocks=4), allocated([5], first_block=4)))


def test_a_table_is_not_copied(tables):
    table = tables.table(1)
    apply(tables, (ops.allocate(1, 60, known_blocks=3), allocated([4], first_block=3)))
    assert tables.table(1) is table


def test_later_keeps_what_is_there_and_makes_a_sequence_known(tables):
    later = allocated([], outcome=LATER, state=DROPPED)
    grow = allocated([], outcome=LATER, state=RESIDENT)
    apply(tables, (ops.allocate(2, 16), later), (ops.allocate(1, 90), grow))
    assert (tables.state(2), tables.table(2)) == (DROPPED, [])
    assert (tables.state(1), tables.table(1)) == (RESIDENT, [7, 8, 9])


def test_never_changes_nothing(tables):
    never = allocated([], outcome=NEVER, state=pb.Sequence.STATE_UNSPECIFIED)
    apply(tables, (ops.allocate(1, 9000), never), (ops.allocate(2, 9000), never))
    assert tables.table(1) == [7, 8, 9]
    assert 2 not in tables


def test_slots_are_frame_times_block_and_offset(tables):
    assert tables.slots(1, 14, 4).tolist() == [7 * 16 + 14, 7 * 16 + 15, 8 * 16, 8 * 16 + 1]
    assert tables.slots(1, 47, 1).tolist() == [9 * 16 + 15]
    assert tables.slots(1, 3, 0).tolist() == []
    assert tables.slots(1, 0, 48).dtype == "int64"
    assert tables.slots_of([(1, 0, 1), (1, 16, 2)]).tolist() == [7 * 16, 8 * 16, 8 * 16 + 1]


def test_slots_do_not_overflow_with_large_frame_numbers():
    tables = BlockTables(16)
    apply(tables, (ops.allocate(1, 16), allocated([2**32 - 1])))
    assert tables.slots(1, 15, 1).tolist() == [(2**32 - 1) * 16 + 15]


@pytest.mark.parametrize(("first", "count"), [(40, 9), (48, 1), (-1, 2), (5, -1)])
def test_slots_beyond_the_room_are_refused(tables, first, count):
    with pytest.raises(ClientError, match="has room for 48 tokens"):
        tables.slots(1, first, count)


def test_unknown_sequences_are_refused(tables):
    for ask in (tables.table, tables.state, lambda sequence: tables.slots(sequence, 0, 1)):
        with pytest.raises(ClientError, match="sequence 5 was never allocated"):
            ask(5)


def test_a_fork_copies_the_table_and_shares_the_tail_until_each_has_allocated(tables):
    apply(tables, (ops.fork(1, [2, 3]), FORKED))
    assert tables.table(2) == tables.table(3) == [7, 8, 9]
    for sequence in (1, 2, 3):
        assert len(tables.slots(sequence, 0, 32)) == 32  # Full blocks: not the tail.
        with pytest.raises(SharedTail, match=f"sequence {sequence} shares its last block"):
            tables.slots(sequence, 31, 2)
    apply(tables, (ops.allocate(2, 41, known_blocks=3), allocated([12], first_block=2)))
    assert tables.slots(2, 40, 1).tolist() == [12 * 16 + 8]
    assert tables.table(1) == tables.table(3) == [7, 8, 9]
    for sequence in (1, 3):
        with pytest.raises(SharedTail):
            tables.slots(sequence, 40, 1)
    apply(
        tables,
        (ops.allocate(1, 41), allocated([13], first_block=2)),
        (ops.allocate(3, 41), allocated([7, 8, 9])),
    )
    assert tables.slots(1, 40, 1).tolist() == [13 * 16 + 8]
    assert tables.slots(3, 40, 1).tolist() == [9 * 16 + 8]


def test_a_tail_stays_shared_while_the_allocate_is_answered_later(tables):
    apply(tables, (ops.fork(1, [2]), FORKED), (ops.allocate(2, 41), allocated([], outcome=LATER)))
    with pytest.raises(SharedTail):
        tables.slots(2, 40, 1)


def test_a_full_tail_is_no_shared_tail():
    tables = BlockTables(16)
    apply(tables, (ops.allocate(1, 32), allocated([7, 8])))
    apply(tables, (ops.fork(1, [2]), FORKED))
    assert len(tables.slots(2, 0, 32)) == 32


def test_a_fork_asked_twice_changes_nothing_the_second_time(tables):
    apply(tables, (ops.fork(1, [2]), FORKED))
    both = [(ops.allocate(sequence, 41), allocated([20 + sequence], first_block=2)) for sequence in (1, 2)]
    apply(tables, *both)
    apply(tables, (ops.fork(1, [2]), FORKED))
    assert tables.table(2) == [7, 8, 22]
    assert tables.slots(1, 40, 1).tolist() == [21 * 16 + 8]


def test_a_fork_answered_later_shares_nothing(tables):
    apply(tables, (ops.fork(1, [2]), pb.Result(fork=pb.ForkResponse(outcome=LATER))))
    assert 2 not in tables
    assert len(tables.slots(1, 40, 1)) == 1


def test_phases_come_in_the_order_of_the_contract_not_of_the_request(tables):
    """A beam is forked and its loser freed in one step; a freed id is gone whatever stood where."""
    apply(
        tables,
        (ops.allocate(2, 41), allocated([12], first_block=2)),
        (ops.free([1]), FREED),
        (ops.fork(1, [2]), FORKED),
    )
    assert 1 not in tables
    assert tables.table(2) == [7, 8, 12]
    assert len(tables.slots(2, 40, 1)) == 1


def test_free_passes_over_the_unknown(tables):
    apply(tables, (ops.free([1, 99]), FREED))
    assert 1 not in tables


def test_a_journey_out_and_in(tables):
    apply(tables, (ops.swap_out(1, 40), swapped(SWAPPING_OUT)))
    assert tables.state(1) == SWAPPING_OUT
    with pytest.raises(ClientError, match="is SWAPPING_OUT: not to be written to"):
        tables.slots(1, 0, 1)
    tables.apply_events([moved(1, SWAPPED)])
    assert (tables.state(1), tables.table(1)) == (SWAPPED, [])
    apply(tables, (ops.swap_in(1), swapped(SWAPPING_IN, [3, 4, 5])))
    assert (tables.state(1), tables.table(1)) == (SWAPPING_IN, [3, 4, 5])
    with pytest.raises(ClientError, match="SWAPPING_IN"):
        tables.slots(1, 0, 1)
    tables.apply_events([moved(1, RESIDENT, [3, 4, 6])])
    assert (tables.state(1), tables.table(1)) == (RESIDENT, [3, 4, 6])


def test_swap_in_answered_later_stays_swapped(tables):
    tables.apply_events([moved(1, SWAPPED)])
    apply(tables, (ops.swap_in(1), swapped(SWAPPED, outcome=LATER)))
    assert (tables.state(1), tables.table(1)) == (SWAPPED, [])


def test_a_cancelled_swap_out_keeps_its_table(tables):
    apply(tables, (ops.swap_out(1, 40), swapped(SWAPPING_OUT)))
    apply(tables, (ops.swap_in(1), swapped(RESIDENT)))
    assert (tables.state(1), tables.table(1)) == (RESIDENT, [7, 8, 9])


def test_events_of_a_response_come_after_its_results(tables):
    """It came in before this step, and grew in it; the event tells how things are after both."""
    tables.apply_events([moved(1, SWAPPED)])
    apply(tables, (ops.swap_in(1), swapped(SWAPPING_IN, [1, 2, 3])))
    grown = (ops.allocate(1, 60, known_blocks=3), allocated([4], first_block=3))
    apply(tables, grown, events=[moved(1, RESIDENT, [1, 2, 3, 4])])
    assert (tables.state(1), tables.table(1)) == (RESIDENT, [1, 2, 3, 4])


def test_a_swap_out_that_ended_within_its_step_has_ended(tables):
    apply(
        tables, (ops.swap_out(1, 40, pb.SwapRequest.DROP), swapped(SWAPPING_OUT)), events=[moved(1, DROPPED)]
    )
    assert (tables.state(1), tables.table(1)) == (DROPPED, [])


def test_events_of_freed_sequences_and_of_other_kinds_are_passed_over(tables):
    apply(tables, (ops.free([1]), FREED))
    pressure = pb.Event(pressure_changed=pb.PressureChanged(tier=pb.TIER_GPU, pressure=pb.PRESSURE_FULL))
    tables.apply_events([moved(1, RESIDENT, [1]), pressure])
    assert 1 not in tables


def test_activity_tells_states_and_the_event_after_it_the_table(tables):
    def running(state):
        return ops.update_activity(1, pb.ACTIVITY_RUNNING), pb.Result(
            update_activity=pb.UpdateActivityResponse(outcome=OK, state=state)
        )

    tables.apply_events([moved(1, SWAPPED)])
    apply(tables, running(SWAPPING_IN))
    assert tables.state(1) == SWAPPING_IN
    apply(tables, running(RESIDENT), events=[moved(1, RESIDENT, [5])])
    assert (tables.state(1), tables.table(1)) == (RESIDENT, [5])
    apply(tables, running(RESIDENT))
    assert (tables.state(1), tables.table(1)) == (RESIDENT, [5])


def test_what_running_brings_back_comes_after_the_allocates(tables):
    """A sequence that was swapped out: the Allocate of the same step finds it there still."""
    apply(tables, (ops.swap_out(1, 40), swapped(SWAPPED)))
    coming = pb.Result(update_activity=pb.UpdateActivityResponse(outcome=OK, state=SWAPPING_IN))
    apply(
        tables,
        (ops.update_activity(1, pb.ACTIVITY_RUNNING), coming),
        (ops.allocate(1, 48), allocated([], outcome=LATER, state=SWAPPED)),
    )
    assert tables.state(1) == SWAPPING_IN


def test_what_runs_already_is_moved_by_what_follows(tables):
    running = pb.Result(update_activity=pb.UpdateActivityResponse(outcome=OK, state=RESIDENT))
    out = ops.swap_out(1, 40), swapped(SWAPPING_OUT)
    apply(tables, (ops.update_activity(1, pb.ACTIVITY_RUNNING), running), out)
    assert tables.state(1) == SWAPPING_OUT


def test_an_answer_of_another_length_is_refused(tables):
    with pytest.raises(ClientError, match="1 operations were answered by 0 results"):
        tables.apply([ops.free([1])], pb.StepResponse())
    assert 1 in tables


def test_a_child_of_a_parent_that_came_back_in_the_same_answer_is_where_it_is(tables):
    apply(tables, (ops.swap_out(1, 40), swapped(SWAPPED)))
    apply(tables, (ops.swap_in(1), swapped(SWAPPING_IN)))
    back = moved(1, RESIDENT, [3, 4, 5])
    back.sequence_moved.valid_tokens = 40
    apply(tables, (ops.fork(1, [2]), FORKED), events=[back])
    assert (tables.state(2), tables.table(2), tables.valid_tokens(2)) == (RESIDENT, [3, 4, 5], 40)
    tables.table(2).append(9)
    assert tables.table(1) == [3, 4, 5]
