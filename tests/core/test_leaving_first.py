"""What leaves a tier first, and what goes with it."""

from kvstore.core.types import Retention, Tier
from tests.core.caller import Caller
from tests.core.ops import end_session, free
from tests.core.three_tiers import KEYS, TOKENS, caller_of, disk_only
from tests.core.world import keys_of, text


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
