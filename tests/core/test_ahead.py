"""Blocks that are brought up before anybody asks: as far as there is room that nobody needs."""

import numpy as np
import pytest

from kvstore.core.types import NamespaceId, Retention, Rows, SequenceState, TenantId, Tier, Urgency, domain_id
from kvstore.sim.texts import Content
from tests.core.caller import Caller, moves
from tests.core.ops import free, swap_out
from tests.core.world import World, keys_of, make_store, text

TOKENS = text(1, 16)
KEYS = keys_of(TOKENS)
LOAD, READ = (Tier.CPU, Tier.GPU), (Tier.DISK, Tier.CPU)


def caller_of(*found: Content, **sizes: int) -> Caller:
    world = World(make_store(**({"gpu_frames": 20, "cpu_frames": 16, "disk_frames": 64} | sizes)))
    if found:
        world.find(*found)
    return Caller(world)


def rows_of(caller: Caller, tokens: Content) -> Rows:
    table = caller.world.store.memory.prefix.find_prefix(
        domain_id(NamespaceId(1), TenantId(1)), keys_of(tokens), {}
    )
    return np.array(table, np.intp)


def ask_ahead(caller: Caller, tier: Tier, tokens: Content = TOKENS) -> None:
    """As a verb of the store does; the store wakes up at the next tick."""
    caller.world.store.links.ask_ahead(tier, rows_of(caller, tokens))
    caller.world.tick()


def wishes(caller: Caller) -> int:
    return len(caller.world.store.links.ahead)


def shed(caller: Caller) -> tuple[int, ...]:
    return tuple(tier.blocks_shed for tier in caller.world.store.usage().tiers)


@pytest.mark.parametrize(("tier", "places"), [(Tier.CPU, (0, 4, 0)), (Tier.GPU, (4, 0, 0))])
def test_blocks_come_from_disk_to_the_tier_that_is_named(tier: Tier, places: tuple[int, int, int]) -> None:
    caller = caller_of(TOKENS)
    ask_ahead(caller, tier)
    assert [moving.transfer.urgency for moving in caller.world.under_way] == [Urgency.PREFETCH]
    caller.world.drain()
    assert caller.lookup(KEYS).blocks_by_tier == places
    assert (wishes(caller), shed(caller)) == (0, (0, 0, 0))
    result = caller.allocate(1, 17, KEYS)
    caller.world.drain()
    assert result.cached_tokens == 16
    caller.read(caller.table(1), TOKENS)


def test_what_is_there_already_is_not_moved() -> None:
    caller = caller_of()
    caller.cache(TOKENS)
    ask_ahead(caller, Tier.GPU)
    assert not caller.world.moving(*LOAD)
    caller.world.drain()
    ask_ahead(caller, Tier.CPU)
    assert not caller.world.under_way


def test_who_asks_while_a_block_is_on_its_way_waits_for_the_same_transfer() -> None:
    caller = caller_of(TOKENS)
    ask_ahead(caller, Tier.CPU)
    (read,) = caller.world.under_way
    caller.allocate(1, 17, KEYS)
    assert caller.world.under_way == [read]
    assert caller.effects.raised == (read.transfer.id,), "it is not to stand behind what is asked for later"
    caller.allocate(2, 17, KEYS)
    assert not caller.effects.raised
    caller.world.end_one()
    (load,) = caller.world.under_way
    assert load.transfer.urgency is Urgency.ASKED
    caller.world.drain()
    assert caller.state(1) is SequenceState.RESIDENT
    assert wishes(caller) == 0


def test_who_asks_for_what_waits_its_turn_does_not_wait_with_it() -> None:
    """One block at a time is brought ahead; the others are read for their asker at once."""
    caller = caller_of(TOKENS, transfer_blocks_max=1, transfers_per_link_max=3)
    ask_ahead(caller, Tier.CPU)
    caller.allocate(1, 17, KEYS)
    (ahead, *_) = caller.world.moving(*READ)
    assert caller.effects.raised == (ahead.transfer.id,)
    urgencies = [moving.transfer.urgency for moving in caller.world.moving(*READ)]
    assert urgencies == [Urgency.PREFETCH] + [Urgency.ASKED] * 3
    caller.world.drain()
    assert (caller.state(1), wishes(caller)) == (SequenceState.RESIDENT, 0)


def test_an_asker_on_the_way_to_the_gpu_is_served_by_what_comes_ahead() -> None:
    caller = caller_of(TOKENS)
    ask_ahead(caller, Tier.GPU)
    caller.world.end_one()
    (load,) = caller.world.moving(*LOAD)
    assert load.transfer.urgency is Urgency.PREFETCH
    caller.allocate(1, 17, KEYS)
    assert caller.world.under_way == [load]
    assert caller.effects.raised == (load.transfer.id,)
    caller.world.drain()
    (notice,) = moves(caller.keep_alive().notices)
    assert notice.valid_tokens == 16
    caller.read(notice.block_table, TOKENS)


def test_it_goes_behind_all_that_is_asked_for() -> None:
    other = text(2, 24)
    caller = caller_of(TOKENS, other, transfer_blocks_max=1, transfers_per_link_max=1)
    caller.allocate(1, 25, keys_of(other))
    ask_ahead(caller, Tier.CPU)
    assert [moving.transfer.urgency for moving in caller.world.moving(*READ)] == [Urgency.ASKED]
    caller.world.drain()
    assert caller.lookup(KEYS).blocks_by_tier == (0, 4, 0)


def test_on_the_gpu_only_frames_that_are_free_are_taken_and_not_the_last_ones() -> None:
    caller = caller_of(TOKENS)
    caller.allocate(1, 4 * 16)
    ask_ahead(caller, Tier.GPU)
    caller.world.drain()
    # Of twenty frames two stay free.
    assert caller.lookup(KEYS).blocks_by_tier == (2, 2, 0)
    assert caller.world.free_frames()[0] == 2
    assert (wishes(caller), shed(caller)) == (0, (2, 0, 0))


def test_cached_blocks_of_the_gpu_are_not_driven_out() -> None:
    caller = caller_of(TOKENS)
    caller.cache(text(2, 4 * 20))
    caller.world.drain()
    ask_ahead(caller, Tier.GPU)
    caller.world.drain()
    assert caller.lookup(keys_of(text(2, 80))).blocks_cached == 20
    assert caller.lookup(KEYS).blocks_by_tier == (0, 4, 0)


def test_what_swapped_sequences_hold_is_not_touched_nor_what_is_kept_for_passage() -> None:
    """The CPU tier has eight frames for all but the passage, and all are claimed."""
    caller = caller_of(TOKENS)
    caller.begin(1, text(2, 32))
    caller.step(swap_out(1, 32))
    caller.step()
    caller.world.drain()
    ask_ahead(caller, Tier.CPU)
    assert not caller.world.under_way
    assert wishes(caller) == 4
    assert caller.state(1) is SequenceState.SWAPPED
    caller.step(free(1, retention=Retention.DISCARD))
    caller.world.tick()
    caller.world.drain()
    assert caller.lookup(KEYS).blocks_by_tier == (0, 4, 0)
    assert wishes(caller) == 0


def test_more_than_the_tier_holds_is_not_wished_for() -> None:
    """Else the last ones would drive out the first, which are needed first."""
    long = text(1, 80)
    caller = caller_of(long)
    ask_ahead(caller, Tier.CPU, long)
    caller.world.drain()
    assert caller.lookup(keys_of(long)).blocks_by_tier == (0, 8, 12)
    assert shed(caller) == (0, 12, 0)


def test_the_queue_has_a_bound() -> None:
    caller = caller_of(TOKENS, queue_blocks_max=3, transfer_blocks_max=1)
    ask_ahead(caller, Tier.CPU)
    caller.world.drain()
    assert caller.lookup(KEYS).blocks_by_tier == (0, 3, 1)
    assert shed(caller) == (0, 1, 0)


def test_wishes_for_blocks_that_are_gone_come_to_nothing() -> None:
    caller = caller_of(TOKENS, transfer_blocks_max=1)
    ask_ahead(caller, Tier.GPU)
    caller.world.lose(caller.world.shadow.disk.find())
    caller.world.drain()
    assert wishes(caller) == 0
    assert caller.lookup(KEYS).blocks_cached == 0
    assert caller.world.free_frames() == (20, 16, 64)


def test_a_row_that_is_another_block_by_now_is_not_brought_up() -> None:
    caller = caller_of(TOKENS, transfer_blocks_max=1)
    ask_ahead(caller, Tier.CPU)
    # As if the rows had been given back, and taken by other blocks since.
    caller.world.store.memory.blocks.generation[rows_of(caller, TOKENS)] += np.uint32(1)
    caller.world.drain()
    assert wishes(caller) == 0
    assert caller.lookup(KEYS).blocks_by_tier == (0, 1, 3)


@pytest.mark.parametrize("late", [False, True])
def test_a_read_ahead_that_fails_leaves_no_wish(late: bool) -> None:
    caller = caller_of(TOKENS)
    ask_ahead(caller, Tier.GPU)
    (read,) = caller.world.moving(*READ)
    caller.world.end(read, failed=[] if late else [1], late=[1] if late else [])
    caller.world.drain()
    assert wishes(caller) == 0
    assert caller.lookup(KEYS).blocks_by_tier == ((3, 0, 1) if late else (1, 0, 0))


def test_a_load_ahead_that_fails_takes_the_block_out_of_the_index() -> None:
    caller = caller_of()
    caller.cache(TOKENS)
    caller.world.drain()
    caller.allocate(900, 80)
    caller.step(free(900, retention=Retention.DISCARD))
    caller.step()
    ask_ahead(caller, Tier.GPU)
    caller.world.end(caller.world.moving(*LOAD)[0], failed=[2])
    assert caller.lookup(KEYS).blocks_by_tier == (2, 0, 0)
    assert caller.world.free_frames()[0] == 18


def test_while_the_disk_is_stuck_nothing_is_read_ahead() -> None:
    caller = caller_of(TOKENS, text(2, 32), cpu_frames=8)
    caller.allocate(1, 33, keys_of(text(2, 32)))
    (read,) = caller.world.moving(*READ)
    caller.world.end(read, late=[0, 1, 2, 3])
    ask_ahead(caller, Tier.CPU)
    assert not caller.world.moving(*READ)
    assert (wishes(caller), shed(caller)) == (0, (0, 4, 0))
