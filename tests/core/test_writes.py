"""Several writes to disk under way: what may go with which, and what follows where one of them fails."""

import random

import pytest

from kvstore.core.errors import CheckFailed
from kvstore.core.events import TransferEnded
from kvstore.core.types import Tier
from kvstore.sim.carrying import ByHand, Moving
from tests.core.caller import Caller
from tests.core.world import World, keys_of, make_store, text


class Still(ByHand):
    """Nothing moves before its end."""

    def __init__(self) -> None:
        super().__init__(random.Random(0), 0.0)

    def carry(self, world: World, moving: Moving) -> None:
        pass


TOKENS = text(1, 32)
KEYS = keys_of(TOKENS)


def writing(count: int = 2, **sizes: int) -> tuple[Caller, list[Moving]]:
    """A chain of eight blocks on its way down, so many writes of a block under way: the rest waits."""
    numbers = {"gpu_frames": 16, "cpu_frames": 16, "disk_frames": 32, "transfer_blocks_max": 1}
    caller = Caller(World(make_store(**(numbers | {"writes_max": count} | sizes)), carrier=Still()))
    caller.cache(TOKENS, session="s")
    while copies := caller.world.moving(Tier.GPU, Tier.CPU):
        caller.world.end(copies[0])
    writes = caller.world.moving(Tier.CPU, Tier.DISK)
    assert len(writes) == count
    return caller, writes


def keys_under_way(caller: Caller) -> list[bytes]:
    return [moving.transfer.keys[0].key for moving in caller.world.moving(Tier.CPU, Tier.DISK)]


def test_a_block_is_written_while_what_it_hangs_on_is() -> None:
    caller, _ = writing(3)
    assert keys_under_way(caller) == list(KEYS[:3])
    caller.world.end_one()
    assert keys_under_way(caller) == list(KEYS[1:4])
    caller.world.drain()
    assert set(caller.world.shadow.disk) == {(1, 1, key) for key in KEYS}


def test_writes_end_in_the_order_in_which_they_were_begun() -> None:
    caller, (first, second) = writing()
    with pytest.raises(CheckFailed, match="which was begun before it"):
        caller.world.store.handle(TransferEnded(time=caller.world.time, transfer=second.transfer.id))
    caller.world.end(first)
    caller.world.end(second)


def test_few_blocks_gather_while_a_write_is_under_way() -> None:
    caller = Caller(World(make_store(gpu_frames=16, cpu_frames=64, disk_frames=32, transfer_blocks_max=4)))
    for session in ("a", "b", "c"):
        caller.cache(text(ord(session), 12), session=session)
    while copies := caller.world.moving(Tier.GPU, Tier.CPU):
        caller.world.end(copies[0])
    # The first three blocks alone, then a whole transfer of those that came meanwhile; two are left.
    assert [len(each.transfer.keys) for each in caller.world.moving(Tier.CPU, Tier.DISK)] == [3, 4]
    caller.world.end_one()
    assert [len(each.transfer.keys) for each in caller.world.moving(Tier.CPU, Tier.DISK)] == [4]
    caller.world.end_one()
    assert [len(each.transfer.keys) for each in caller.world.moving(Tier.CPU, Tier.DISK)] == [2]


def test_after_a_failure_nothing_is_begun_before_the_others_have_ended() -> None:
    caller, (first, second, third) = writing(3)
    caller.world.end(first, failed=[0])
    assert caller.world.moving(Tier.CPU, Tier.DISK) == [second, third]
    caller.world.end_one()
    assert caller.world.moving(Tier.CPU, Tier.DISK) == [third]
    caller.world.end_one()
    assert second.failed
    assert third.failed
    assert len(caller.world.shadow.disk) == 0
    # One failure, told once: the next look comes after the time for one.
    assert caller.world.store.links.transfers.writes_failed_in_a_row == 1
    for _ in range(50):
        caller.world.tick()
        caller.world.drain()
    assert set(caller.world.shadow.disk) == {(1, 1, key) for key in KEYS}


def test_what_was_stored_before_the_failure_was_known_counts_as_failed_and_is_deleted() -> None:
    """It was begun after the disk had given up what it hangs on, and before the store was told of that."""
    caller, (first, second, third) = writing(3)
    second.before = third.before = None
    caller.world.end(first, failed=[0])
    effects = caller.world.end(second)
    assert [key.key for delete in effects.deletes for key in delete.keys] == [KEYS[1]]
    effects = caller.world.end(third)
    assert [key.key for delete in effects.deletes for key in delete.keys] == [KEYS[2]]
    disk = caller.world.store.usage().tiers[Tier.DISK]
    assert (disk.blocks_moved_in, disk.frames_free) == (0, 32)
    assert len(caller.world.shadow.disk) == 0
    for _ in range(50):
        caller.world.tick()
        caller.world.drain()
    assert set(caller.world.shadow.disk) == {(1, 1, key) for key in KEYS}


def test_what_hangs_on_nothing_that_has_failed_stays() -> None:
    caller, (first, _) = writing(2)
    caller.world.end(first, failed=[])
    second, third = caller.world.moving(Tier.CPU, Tier.DISK)
    third.before = None
    caller.world.end(second, failed=[])
    effects = caller.world.end(third)
    assert not effects.deletes
    assert caller.world.store.usage().tiers[Tier.DISK].blocks_moved_in == 3


def test_a_write_may_be_larger_than_other_transfers() -> None:
    sizes = {"transfer_blocks_max": 2, "write_blocks_max": 3}
    caller = Caller(World(make_store(gpu_frames=16, cpu_frames=64, disk_frames=32, **sizes)))
    caller.cache(TOKENS, session="s")
    while copies := caller.world.moving(Tier.GPU, Tier.CPU):
        assert len(copies[0].transfer.source_frames) == 2
        caller.world.end(copies[0])
    # The first two alone, since nothing was under way; the rest by whole writes.
    assert [len(each.transfer.keys) for each in caller.world.moving(Tier.CPU, Tier.DISK)] == [2, 3, 3]
