"""Between turns: what goes down, in which order, what leaves a tier first, and how it comes back."""

import pytest

from kvstore.core.frames import make_room
from kvstore.core.operations import AllocateResult
from kvstore.core.types import Outcome, Retention, SequenceState, Tier
from tests.core.caller import Caller, moves
from tests.core.ops import allocate, end_session, free
from tests.core.world import World, keys_of, make_store, text

TOKENS = text(1, 16)
KEYS = keys_of(TOKENS)


def caller_of(**sizes: int) -> Caller:
    return Caller(World(make_store(**({"gpu_frames": 16, "cpu_frames": 16, "disk_frames": 32} | sizes))))


def fill_gpu(caller: Caller, sequence: int = 900) -> None:
    """Another's work takes the whole GPU tier and goes."""
    pool = caller.world.store.memory.pools[Tier.GPU]
    assert caller.allocate(sequence, pool.frame_count * 4).outcome is Outcome.OK
    caller.step(free(sequence, retention=Retention.DISCARD))
    caller.step()


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


def disk_only(**sizes: int) -> Caller:
    """TOKENS lie on disk and nowhere else."""
    caller = caller_of(**sizes)
    caller.cache(TOKENS, session="s")
    caller.world.drain()
    fill_gpu(caller)
    memory = caller.world.store.memory
    assert make_room(memory, Tier.CPU, memory.pools[Tier.CPU].frame_count)
    assert caller.lookup(KEYS).blocks_by_tier == (0, 0, 4)
    return caller


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


# -------------------------------------------------------------------- what leaves first


def test_case_6_22_what_was_never_published_goes_at_once_and_takes_no_place_in_the_cache() -> None:
    caller = caller_of(gpu_frames=8, cpu_frames=0, disk_frames=0)
    caller.cache(TOKENS)
    for sequence in range(1, 20):
        caller.allocate(sequence, 16)
        caller.step(free(sequence))
        caller.step()
    assert caller.lookup(KEYS).blocks_cached == 4


def test_case_6_03_the_tail_of_a_chain_goes_before_its_head() -> None:
    caller = caller_of(gpu_frames=8, cpu_frames=0, disk_frames=0)
    caller.cache(TOKENS)
    for frames in range(1, 5):
        caller.allocate(frames, (4 + frames) * 4)
        assert caller.lookup(KEYS).blocks_cached == 4 - frames
        caller.step(free(frames))
        caller.step()


def test_the_chain_that_was_used_longest_ago_goes_first() -> None:
    caller = caller_of(gpu_frames=8, cpu_frames=0, disk_frames=0)
    for number in (1, 2):
        caller.cache(text(number, 16))
    caller.allocate(1, 16, KEYS[:3])
    caller.step(free(1))
    caller.step()
    caller.allocate(2, 12)
    assert caller.lookup(KEYS).blocks_cached == 3
    assert caller.lookup(keys_of(text(2, 16))).blocks_cached == 2


def test_discard_goes_at_once_where_nobody_else_ever_used_it() -> None:
    caller = caller_of()
    caller.begin(1, TOKENS)
    caller.step(free(1, retention=Retention.DISCARD))
    caller.step()
    assert caller.lookup(KEYS).blocks_cached == 0
    assert caller.world.free_frames() == (16, 16, 32)


def test_discard_spares_what_a_second_sequence_has_used() -> None:
    caller = caller_of()
    caller.begin(1, TOKENS)
    caller.allocate(2, 9, KEYS[:2])
    caller.step(free(2))
    caller.step(free(1, retention=Retention.DISCARD))
    caller.step()
    # Also when no transfer holds anything any more.
    caller.world.drain()
    assert caller.lookup(KEYS).blocks_cached == 2


def test_the_end_of_a_session_takes_what_only_it_used_out_of_every_tier() -> None:
    caller = caller_of()
    caller.cache(TOKENS, session="s")
    caller.world.drain()
    assert len(caller.world.shadow.disk) == 4
    caller.step(end_session("s"))
    caller.step()
    assert caller.lookup(KEYS).blocks_cached == 0
    assert caller.world.free_frames() == (16, 16, 32)
    assert not caller.world.shadow.disk


def test_the_end_of_a_session_spares_what_another_used_and_what_is_in_use() -> None:
    caller = caller_of()
    caller.cache(TOKENS, session="s")
    caller.world.drain()
    caller.allocate(2, 9, KEYS[:2], session="other")
    caller.step(free(2))
    caller.step(end_session("s"))
    assert caller.lookup(KEYS).blocks_cached == 2
    caller.begin(3, text(3, 8), session="t")
    caller.step(end_session("t"))
    assert caller.lookup(keys_of(text(3, 8))).blocks_cached == 2


def test_the_end_of_a_session_is_that_of_its_tenant_alone() -> None:
    caller = caller_of()
    caller.cache(TOKENS, session="s", tenant="a")
    caller.cache(TOKENS, session="s", tenant="b")
    caller.world.drain()
    caller.step(end_session("s", "b"))
    assert caller.lookup(KEYS, tenant="a").blocks_cached == 4
    assert caller.lookup(KEYS, tenant="b").blocks_cached == 0


def test_a_session_that_ends_while_it_is_copied_down_goes_when_the_copy_has_ended() -> None:
    caller = caller_of()
    caller.cache(TOKENS, session="s")
    assert caller.world.under_way
    caller.step(end_session("s"))
    caller.step()
    caller.world.drain()
    assert caller.lookup(KEYS).blocks_cached == 0
    assert not caller.world.shadow.disk


def test_a_turn_freed_and_its_session_ended_in_one_step() -> None:
    caller = caller_of()
    caller.begin(1, TOKENS, session="s")
    caller.step(end_session("s"), free(1))
    caller.step()
    assert caller.lookup(KEYS).blocks_cached == 0


def test_a_block_evicted_from_disk_is_deleted_there() -> None:
    caller = caller_of(disk_frames=4)
    caller.cache(TOKENS, session="s")
    caller.world.drain()
    caller.cache(text(2, 16), session="t")
    caller.world.drain()
    assert len(caller.world.shadow.disk) <= 4
    assert {place[2] for place in caller.world.shadow.disk} == {
        key for key in (*KEYS, *keys_of(text(2, 16))) if on_disk(caller, key)
    }


def on_disk(caller: Caller, key: bytes) -> bool:
    blocks = caller.world.store.memory.blocks
    rows = [row for row in range(blocks.capacity) if blocks.key[row] == key]
    return any(blocks.valid[Tier.DISK][row] for row in rows)


def test_case_2_20_counts_hold_in_every_tier_while_eviction_runs() -> None:
    """The invariants are checked after each event; here every tier overflows many times."""
    caller = caller_of(gpu_frames=6, cpu_frames=6, disk_frames=6)
    for number in range(1, 40):
        caller.cache(text(number % 7, 8 + 4 * (number % 4)), session=f"s{number % 3}")
        caller.world.drain()
    caller.detach()
    caller.world.check_nothing_held()


def test_a_block_that_was_lost_and_written_again_stays_on_disk() -> None:
    """An old read of it still runs; its end must not delete what was written since."""
    caller = disk_only(gpu_frames=32, transfer_blocks_max=1)
    other = Caller(caller.world, 2)
    world = caller.world
    caller.allocate(1, 17, KEYS)
    head, tail = world.moving(Tier.DISK, Tier.CPU)
    world.end(head, failed=[0])
    other.begin(1, TOKENS, session="s")
    other.step(free(1))
    other.step()
    for _ in range(30):
        for moving in [each for each in world.under_way if each is not tail]:
            world.end(moving)
    assert {key for _, _, key in world.shadow.disk} >= set(KEYS[:2])
    world.end(tail)
    world.drain()
    assert {key for _, _, key in world.shadow.disk} >= set(KEYS[:2])
