"""Tenants share the tiers: a flood of one takes what nobody uses, then its own, and nothing of another's."""

import numpy as np
import pytest

from kvstore.core.config import StoreConfig
from kvstore.core.errors import ConfigInvalid
from kvstore.core.events import Tick
from kvstore.core.lanes import Lane
from kvstore.core.store import Store
from kvstore.core.types import NamespaceId, Outcome, Retention, TenantId, Tier, Urgency, domain_id
from kvstore.policy.eviction import Lru
from kvstore.policy.swap import LengthThreshold
from kvstore.sim.stores import TENANTS
from tests.core.caller import Caller
from tests.core.ops import free
from tests.core.world import World, keys_of, make_store, text

# Half of each tier is each tenant's.
SIZES = {"gpu_frames": 16, "cpu_frames": 64, "disk_frames": 32}


def caller_of(**sizes: int) -> Caller:
    return Caller(World(make_store(**(SIZES | sizes))))


def flood(caller: Caller, tenant: str, *, texts: int = 12, session: str = "flood", first: int = 100) -> None:
    """Chats of a tenant, one after the other, more than any tier holds."""
    for number in range(first, first + texts):
        caller.cache(text(number, 32), session=f"{session} {number}", tenant=tenant)
        caller.world.drain()


def found(caller: Caller, tokens: tuple[int, ...], tenant: str) -> int:
    """Blocks of a text that can be found in any tier."""
    return sum(caller.lookup(keys_of(tokens), tenant).blocks_by_tier)


def test_a_flood_leaves_a_tenant_what_is_its_share_below_the_gpu() -> None:
    caller = caller_of()
    mine = text(1, 16 * 4)
    caller.cache(mine[:60], session="mine", tenant="b")
    caller.world.drain()
    flood(caller, "a")
    assert found(caller, mine[:60], "b") == 15
    used = caller.world.store.memory.shares.used
    assert used[Tier.CPU][1] == used[Tier.DISK][1] == 15


def test_a_flood_takes_what_another_has_borrowed() -> None:
    """It may have more than its share while nobody else wants it, and not a block longer."""
    caller = caller_of()
    flood(caller, "b")
    shares = caller.world.store.memory.shares
    assert shares.used[Tier.DISK].tolist() == [0, 32, 0]
    flood(caller, "a", texts=2)
    assert shares.used[Tier.DISK].tolist() == [16, 16, 0]
    flood(caller, "a", first=200)
    assert shares.used[Tier.DISK].tolist() == [16, 16, 0]


def test_what_runs_goes_before_what_is_cached_whose_share_it_may_be() -> None:
    caller = caller_of(cpu_frames=0, disk_frames=0)
    caller.cache(text(1, 32), tenant="b")
    assert caller.allocate(2, 16 * 4, tenant="a").outcome is Outcome.OK
    assert found(caller, text(1, 32), "b") == 0


def test_a_tenant_within_its_share_takes_back_before_it_gives_up_its_own() -> None:
    caller = caller_of(cpu_frames=0, disk_frames=0)
    mine = text(1, 16)
    caller.cache(mine, tenant="b")
    for number in (2, 3):
        caller.cache(text(number, 24), tenant="a")
    # Older than all that the other has borrowed, and kept.
    assert caller.allocate(9, 4 * 4, tenant="b").outcome is Outcome.OK
    assert found(caller, mine, "b") == 4


def test_a_swap_out_takes_nothing_of_anothers_share() -> None:
    """It is computed again instead: what it would cost the other to lose is not its to spend."""
    caller = caller_of(cpu_frames=16, disk_frames=0)
    mine = text(1, 32)
    caller.cache(mine, tenant="b")
    caller.world.drain()
    caller.begin(2, text(2, 16 * 4), tenant="a")
    caller.swap_out(2, 64)
    caller.world.drain()
    assert caller.lookup(keys_of(mine), "b").blocks_by_tier[Tier.CPU] == 8


def test_several_tenants_in_one_step_are_each_served_for_themselves() -> None:
    caller = caller_of(cpu_frames=0, disk_frames=0)
    caller.cache(text(1, 32), tenant="a")
    caller.cache(text(2, 24), tenant="b")
    first = caller.begin(11, text(11, 12), tenant="b")
    assert first.outcome is Outcome.OK
    caller.step(free(11, retention=Retention.DISCARD))
    caller.step()
    used = caller.world.store.memory.shares.used[Tier.GPU]
    assert used.sum() == 16 - caller.world.store.memory.pools[Tier.GPU].free_count


def test_shares_come_from_disk_with_their_blocks() -> None:
    """Also of one who is not named any more: it has no share, and all that it has can be taken."""
    world = World(make_store(**SIZES))
    for tenant, tokens in ((1, 32), (2, 16), (3, 8)):
        world.find(text(tenant, tokens), tenant=tenant)
    assert world.store.memory.shares.used[Tier.DISK].tolist() == [8, 4, 2]
    flood(Caller(world), "a")
    assert world.store.memory.shares.used[Tier.DISK].tolist() == [28, 4, 0]


def test_usage_tells_what_each_has_and_what_is_its_own() -> None:
    world = World(make_store(**SIZES, percent_of_a=75))
    for tenant, tokens in ((1, 32), (3, 8)):
        world.find(text(tenant, tokens), tenant=tenant)
    caller = Caller(world)
    caller.allocate(1, 12 * 4, tenant="a")
    caller.allocate(2, 4 * 4, tenant="b")
    assert caller.allocate(3, 4, tenant="b").outcome is Outcome.LATER
    told = {
        each.tenant: (
            [(tier.frames_taken, tier.frames_guaranteed) for tier in each.frames],
            each.sequences_waiting,
        )
        for each in world.store.usage().tenants
    }
    assert told == {
        "a": ([(12, 12), (0, 48), (8, 24)], 0),
        "b": ([(4, 4), (0, 16), (0, 8)], 1),
        "": ([(0, 0), (0, 0), (2, 0)], 0),
    }


def test_where_there_is_one_tenant_nothing_is_told_of_it() -> None:
    config = StoreConfig(block_tokens=4, gpu_frames=4)
    assert Store(config, Lru(), LengthThreshold(8)).usage().tenants == ()


def test_a_share_is_not_one_frame_less_for_being_no_binary_fraction() -> None:
    world = World(make_store(gpu_frames=100, percent_of_a=29))
    assert world.store.memory.shares.guaranteed[Tier.GPU].tolist() == [29, 71, 0]


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"c": 0.5}, "c: not one of the tenants"),
        ({"a": 1.5}, "1.5: not a share"),
        ({"a": 0.6, "b": 0.6}, "1.2: more than there is"),
        ({"a": float("nan")}, "nan: not a share"),
    ],
)
def test_shares_that_are_none_are_refused(shares: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigInvalid, match=message):
        StoreConfig(block_tokens=4, gpu_frames=4, tenants=TENANTS, default_tenant="a", tenant_shares=shares)


def test_who_is_not_named_has_an_equal_part_of_what_is_left() -> None:
    config = StoreConfig(
        block_tokens=4, gpu_frames=4, tenants=TENANTS, default_tenant="a", tenant_shares={"a": 0.75}
    )
    assert (config.share_of("a"), config.share_of("b")) == (0.75, 0.25)


def test_one_whose_share_can_not_be_had_holds_nobody_up() -> None:
    """All that it may have is claimed by what it has swapped out: its chats wait for their way to disk."""
    caller = caller_of(gpu_frames=64, disk_frames=64, transfer_blocks_max=4)
    world = caller.world
    caller.begin(1, text(1, 32 * 4), tenant="a")
    caller.swap_out(1, 32 * 4)
    for number in range(2, 6):
        caller.cache(text(number, 32), tenant="b")
        world.drain()
    caller.cache(text(10, 40), session="waits", tenant="a")
    world.drain()
    shares = world.store.memory.shares
    assert shares.used[Tier.CPU].tolist() == [32, 32, 0]
    assert found_on_disk(caller, text(10, 40), "a") == 0
    caller.cache(text(11, 32), session="goes on", tenant="b")
    world.drain()
    assert found_on_disk(caller, text(11, 32), "b") == 8
    # And it gets there as soon as there is room.
    caller.step(free(1))
    caller.step()
    world.handle(Tick(time=world.time))
    world.drain()
    assert found_on_disk(caller, text(10, 40), "a") == 10


def test_a_flood_of_one_is_not_before_what_another_asks_for() -> None:
    """Each has its turn: the one block of a second tenant is in the next copy or the one after it."""
    caller = caller_of(gpu_frames=64, transfer_blocks_max=4, disk_frames=64)
    world = caller.world
    caller.cache(text(1, 40 * 4), tenant="a", session="flood")
    caller.cache(text(2, 4), tenant="b", session="one")
    for _ in range(4):
        world.end(world.moving(Tier.GPU, Tier.CPU)[0])
    assert world.store.memory.shares.used[Tier.CPU][1] == 1


def test_a_flood_that_fills_the_queue_makes_place_in_it_for_another() -> None:
    """Who has most waiting sheds its own."""
    caller = caller_of(gpu_frames=128, transfer_blocks_max=4, disk_frames=64, queue_blocks_max=20)
    for number in (1, 2):
        caller.cache(text(number, 40 * 4), tenant="a", session=f"flood {number}")
    caller.cache(text(3, 8 * 4), tenant="b", session="one")
    caller.world.drain()
    assert found_on_disk(caller, text(3, 8 * 4), "b") == 8
    assert 0 < found_on_disk(caller, text(1, 40 * 4), "a") < 40


def test_what_waits_is_given_up_by_who_has_most_of_it() -> None:
    shares = make_store(gpu_frames=16).memory.shares
    shares._blocks.domain[:16] = [domain_id(NamespaceId(1), TenantId(1 + (row >= 12))) for row in range(16)]
    lane = Lane((Tier.GPU, Tier.CPU), Urgency.BACKGROUND, 2, 4, shares)
    lane.add([*range(9), 12, 13, 14])
    assert lane.give_up(7) == [8, 7, 6, 5, 4, 3, 2]
    assert lane.is_in_step
    # One that waits and has become another's goes where it belongs.
    shares._blocks.domain[0] = shares._blocks.domain[12]
    lane.add([0])
    assert lane.is_in_step
    lane.put_back(np.array([15, 14]))
    assert not lane.stalled ^ {1}
    assert lane.take(8).tolist() == [1]
    lane.resume()
    assert lane.take(8).tolist() == [15, 14, 12, 13, 0]
    assert not lane.rows


def found_on_disk(caller: Caller, tokens: tuple[int, ...], tenant: str) -> int:
    """Blocks of a text whose copy on disk is valid."""
    memory = caller.world.store.memory
    domain = domain_id(NamespaceId(1), TENANTS[tenant])
    rows = [memory.prefix.find(domain, key) for key in keys_of(tokens)]
    return sum(row is not None and bool(memory.blocks.valid[Tier.DISK][row]) for row in rows)
