"""Between turns: what goes down, in which order, what leaves a tier first, and how it comes back."""

import pytest

from kvstore.core.operations import AllocateResult
from kvstore.core.types import Outcome, Retention, SequenceState, Tier
from tests.core.caller import Caller, moves
from tests.core.ops import allocate, free
from tests.core.three_tiers import KEYS, TOKENS, caller_of, disk_only, fill_gpu
from tests.core.world import World, keys_of, make_store, text

# -------------------------------------------------------------------------- on the way down


def test_a_session_goes_to_cpu_and_then_to_disk() -> None:
    caller = caller_of()
    caller.cache(TOKENS, session="s")
    assert [(m.transfer.source, m.transfer.target) for m in caller.world.under_way] == [(Tier.GPU, Tier.CPU)]
    caller.world.end_one()
    (write,) = caller.world.under_way
    assert (write.transfer.source, write.transfer.target) == (Tier.CPU, Tier.DISK)
    assert [key.key for key in write.transfer.keys] == list(KEYS)
    assert [key.parent for key in write.transfer.keys] == [b"", *KEYS[:-1]]
    caller.world.end_one()
    assert caller.world.free_frames() == (12, 12, 28)


def test_what_is_only_cached_goes_to_cpu() -> None:
    caller = caller_of()
    caller.cache(TOKENS)
    caller.world.drain()
    assert caller.world.free_frames() == (12, 12, 32)


@pytest.mark.parametrize("retention", [Retention.CACHE, Retention.SESSION])
def test_retention_named_by_the_engine_counts(retention: Retention) -> None:
    caller = caller_of()
    caller.begin(1, TOKENS, session="" if retention is Retention.SESSION else "s")
    caller.step(free(1, retention=retention))
    caller.world.drain()
    assert len(caller.world.shadow.disk) == (4 if retention is Retention.SESSION else 0)


def test_a_finished_turn_is_copied_down_before_its_frames_are_taken() -> None:
    """Its frames count as room that is coming; whoever waits is woken when the copy has ended."""
    caller = caller_of(gpu_frames=8, cpu_frames=32)
    caller.begin(1, TOKENS, session="s")
    _, result = caller.step(free(1), allocate(2, 32)).results
    assert isinstance(result, AllocateResult)
    assert (result.outcome, result.frames_short) == (Outcome.LATER, 0)
    (copy,) = caller.world.under_way
    assert caller.id in caller.world.end(copy).wake
    assert caller.allocate(2, 32).outcome is Outcome.OK
    assert caller.lookup(KEYS).blocks_by_tier == (0, 4, 0)


def test_a_finished_turn_that_finds_no_room_below_holds_nobody_up() -> None:
    caller = caller_of(gpu_frames=8, cpu_frames=2)
    caller.begin(1, TOKENS, session="s")
    caller.step(free(1))
    caller.world.drain()
    assert caller.allocate(2, 32).outcome is Outcome.OK


def test_the_disk_gets_parents_first_in_any_batch_size() -> None:
    caller = caller_of(transfer_blocks_max=1)
    caller.cache(TOKENS, session="s")
    written: list[bytes] = []
    while caller.world.under_way:
        written += [m.transfer.keys[0].key for m in caller.world.moving(Tier.CPU, Tier.DISK)]
        for moving in caller.world.under_way[:1]:
            caller.world.end(moving)
    assert list(dict.fromkeys(written)) == list(KEYS)


def test_every_link_has_few_transfers_of_bounded_size() -> None:
    caller = caller_of(gpu_frames=64, cpu_frames=64, transfer_blocks_max=4)
    caller.cache(text(1, 160), session="s")
    assert len(caller.world.under_way) == 2
    assert all(len(each.transfer.source_frames) <= 4 for each in caller.world.under_way)


def test_a_session_reaches_the_disk_whichever_copy_ends_first() -> None:
    caller = caller_of(transfer_blocks_max=2)
    caller.cache(TOKENS, session="s")
    _, tail = caller.world.under_way
    caller.world.end(tail)
    caller.world.drain()
    assert len(caller.world.shadow.disk) == 4


def test_a_session_longer_than_the_cpu_tier_reaches_the_disk() -> None:
    caller = caller_of(cpu_frames=8)
    caller.cache(text(1, 64), session="s")
    caller.world.drain()
    assert len(caller.world.shadow.disk) == 16


def test_a_session_that_grows_reaches_the_disk_when_its_first_turn_is_there_alone() -> None:
    caller = caller_of(gpu_frames=24, cpu_frames=8, disk_frames=60)
    tokens = text(1, 32)
    caller.cache(tokens[:16], session="s")
    caller.world.drain()
    caller.begin(1, tokens, session="s")
    for other in (2, 3):
        caller.cache(text(other, 16), session="other")
        caller.world.drain()
    caller.step(free(1))
    caller.world.drain()
    assert {key for _, _, key in caller.world.shadow.disk} >= set(keys_of(tokens))


# --------------------------------------------------------------------------- and up again


def test_a_hit_is_counted_in_the_tier_where_its_best_copy_is() -> None:
    caller = caller_of(gpu_frames=6, disk_frames=0)
    keys = keys_of(text(1, 24))
    caller.cache(text(1, 24))
    caller.world.drain()
    assert caller.lookup(keys).blocks_by_tier == (6, 0, 0)
    caller.allocate(2, 16)
    caller.step(free(2))
    assert caller.lookup(keys).blocks_by_tier == (2, 4, 0)
    result = caller.allocate(3, 24, keys[:5])
    assert result.tier_tokens == (8, 12, 0)
    assert result.cached_tokens == 20


def test_from_disk_through_the_cpu_tier_to_the_gpu() -> None:
    caller = disk_only(gpu_frames=16)
    result = caller.allocate(1, 17, KEYS)
    assert (result.state, result.tier_tokens) == (SequenceState.SWAPPING_IN, (0, 0, 16))
    (read,) = caller.world.under_way
    assert (read.transfer.source, read.transfer.target) == (Tier.DISK, Tier.CPU)
    (load,) = caller.world.end(read).transfers
    assert (load.source, load.target, load.keys) == (Tier.CPU, Tier.GPU, ())
    caller.world.drain()
    (move,) = moves(caller.step().notices)
    assert (move.state, move.valid_tokens) == (SequenceState.RESIDENT, 16)
    caller.read(move.block_table, TOKENS)


def test_case_6_11_fifty_who_wait_for_one_prefix_share_one_transfer() -> None:
    caller = caller_of(gpu_frames=128, cpu_frames=16, disk_frames=0)
    caller.cache(TOKENS)
    caller.world.drain()
    fill_gpu(caller)
    answer = caller.step(*(allocate(i, 17, KEYS) for i in range(1, 51)))
    assert {result.state for result in answer.results} == {SequenceState.SWAPPING_IN}  # type: ignore[union-attr]
    (load,) = caller.world.under_way
    assert len(load.transfer.source_frames) == 4
    effects = caller.world.end(load)
    assert not effects.transfers
    told = moves(caller.step().notices)
    assert [move.sequence for move in told] == list(range(1, 51))
    assert len({move.block_table[:4] for move in told}) == 1


def test_single_flight_holds_for_reads_of_the_disk_and_for_late_comers() -> None:
    caller = disk_only(gpu_frames=32)
    caller.allocate(1, 17, KEYS)
    (read,) = caller.world.moving(Tier.DISK, Tier.CPU)
    caller.allocate(2, 17, KEYS)
    caller.world.end(read)
    caller.allocate(3, 17, KEYS)
    (load,) = caller.world.under_way
    caller.world.end(load)
    assert {caller.state(i) for i in (1, 2, 3)} == {SequenceState.RESIDENT}
    assert not caller.world.under_way


def test_case_1_21_a_block_being_loaded_is_not_evicted_below() -> None:
    """Also row 1.41: the CPU copy stays while a load reads it, and may go afterwards."""
    caller = caller_of(gpu_frames=16, cpu_frames=4, disk_frames=0)
    caller.cache(TOKENS)
    caller.world.drain()
    fill_gpu(caller)
    caller.allocate(1, 17, KEYS)
    (load,) = caller.world.under_way
    caller.begin(2, text(2, 16))
    assert caller.swap_out(2, 16).state is SequenceState.DROPPED, "no CPU frame can go"
    caller.world.end(load)
    caller.read(caller.table(1), TOKENS)
    caller.begin(3, text(3, 16))
    assert caller.swap_out(3, 16).state is SequenceState.SWAPPING_OUT
    caller.world.drain()
    caller.read(caller.table(1), TOKENS)


def test_case_2_08_what_somebody_reads_is_not_evicted() -> None:
    caller = caller_of(cpu_frames=0, disk_frames=0)
    caller.cache(TOKENS)
    caller.allocate(1, 17, KEYS)
    assert caller.allocate(2, 48).outcome is Outcome.LATER
    caller.read(caller.table(1), TOKENS)


def test_case_3_17_victims_are_chosen_and_taken_in_one_event() -> None:
    """Between choice and eviction nothing can hold a victim: a block that is held is no victim."""
    caller = caller_of(gpu_frames=4, cpu_frames=0, disk_frames=0)
    caller.cache(text(1, 8))
    caller.cache(text(2, 8))
    keys = [keys_of(text(i, 8)) for i in (1, 2)]
    one, two = caller.step(allocate(1, 9, keys[0]), allocate(2, 9, keys[1])).results
    assert (one.outcome, two.outcome) == (Outcome.OK, Outcome.LATER)  # type: ignore[union-attr]
    caller.read(caller.table(1), text(1, 8))


@pytest.mark.parametrize("cpu_frames", [1, 2])
def test_case_2_09_loads_through_a_tiny_cpu_tier_finish(cpu_frames: int) -> None:
    """Also row 3.22: loads queue for the passage and finish; nothing spins."""
    world = World(make_store(gpu_frames=16, cpu_frames=cpu_frames, disk_frames=32))
    tokens = text(1, 48)
    world.find(tokens)
    caller = Caller(world)
    for turn in range(1, 16):
        result = caller.allocate(turn, 49, keys_of(tokens))
        assert result.cached_tokens == 48
        world.drain()
        assert caller.state(turn) is SequenceState.RESIDENT
        caller.read(caller.table(turn), tokens)
        caller.step(free(turn))
        fill_gpu(caller, 1000 + turn)
        world.drain()


def test_case_5_05_a_cpu_tier_full_of_claims_still_lets_the_disk_load() -> None:
    caller = disk_only(gpu_frames=32, cpu_frames=8)
    sequence = 10
    while True:
        caller.allocate(sequence, 4)
        if caller.swap_out(sequence, 4).state is SequenceState.DROPPED:
            break
        caller.world.drain()
        sequence += 1
    caller.world.drain()
    assert 0 < caller.world.free_frames()[1] <= 4
    caller.allocate(1, 17, KEYS)
    caller.world.drain()
    assert caller.state(1) is SequenceState.RESIDENT
    caller.read(caller.table(1), TOKENS)
