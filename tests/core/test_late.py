"""Reads that don't end in time: they cost frames, never bytes, and not all of the frames."""

import pytest

from kvstore.core.errors import CheckFailed
from kvstore.core.events import FramesReturned, TransferEnded
from kvstore.core.types import SequenceState, Tier, TransferId
from tests.core.caller import Caller, moves
from tests.core.ops import free
from tests.core.world import Moving, World, keys_of, make_store, text

TOKENS = text(1, 17)
KEYS = keys_of(TOKENS)
READ = (Tier.DISK, Tier.CPU)


def reading(**sizes: int) -> tuple[Caller, Moving]:
    """A prompt of four blocks that are being read from disk, in one transfer."""
    world = World(make_store(**({"gpu_frames": 16, "cpu_frames": 8, "disk_frames": 32} | sizes)))
    world.find(TOKENS[:16])
    caller = Caller(world)
    caller.allocate(1, 17, KEYS)
    return caller, world.moving(*READ)[0]


def late_frames(caller: Caller) -> int:
    return caller.world.store.usage().tiers[Tier.CPU].frames_late


def test_who_waits_goes_on_with_what_came_before_the_late_block() -> None:
    caller, moving = reading()
    caller.world.end(moving, late=[1])
    caller.world.end(caller.world.moving(Tier.CPU, Tier.GPU)[0])
    (notice,) = moves(caller.keep_alive().notices)
    assert (notice.state, notice.valid_tokens) == (SequenceState.RESIDENT, 4)
    caller.write(notice.block_table, TOKENS, 4)
    caller.read(notice.block_table, TOKENS)


def test_what_was_late_is_not_bad() -> None:
    """It lies on disk still, is found, and is read again."""
    caller, moving = reading()
    effects = caller.world.end(moving, late=[0, 1, 2, 3])
    assert not effects.deletes
    caller.world.return_frames(moving)
    caller.step(free(1))
    assert caller.lookup(KEYS).blocks_by_tier == (0, 0, 4)
    caller.allocate(2, 17, KEYS)
    caller.world.drain()
    (notice,) = moves(caller.keep_alive().notices)
    assert notice.valid_tokens == 16
    caller.read(notice.block_table, TOKENS[:16])


def test_bad_blocks_beside_late_ones_are_forgotten_all_the_same() -> None:
    caller, moving = reading()
    caller.world.end(moving, failed=[2], late=[3])
    assert caller.lookup(KEYS).blocks_cached == 2


def test_frames_of_late_reads_are_nobodys_until_they_come_back() -> None:
    """The device writes to each of them just before."""
    caller, moving = reading()
    world = caller.world
    world.end(moving, late=[0, 1, 2])
    world.drain_but_late()
    assert (late_frames(caller), world.free_frames()[1]) == (3, 8 - 3 - 1)
    world.return_frames(moving, [1])
    assert (late_frames(caller), world.free_frames()[1]) == (2, 8 - 2 - 1)
    world.return_frames(moving, [0, 2])
    assert (late_frames(caller), world.free_frames()[1]) == (0, 8 - 1)


def test_reads_fail_at_once_while_the_device_holds_as_many_frames_as_the_passage_has() -> None:
    """With eight frames, half are kept for the passage. Nobody waits for a device that is stuck."""
    caller, moving = reading()
    world = caller.world
    world.end(moving, late=[0, 1, 2, 3])
    caller.step(free(1))
    caller.allocate(2, 17, KEYS)
    assert not world.moving(*READ)
    (notice,) = moves(caller.keep_alive().notices)
    assert (notice.state, notice.valid_tokens) == (SequenceState.RESIDENT, 0)
    caller.step(free(2))
    world.return_frames(moving, [0])
    caller.allocate(3, 17, KEYS)
    assert len(world.moving(*READ)) == 1
    world.drain()
    assert caller.state(3) is SequenceState.RESIDENT


def test_what_waits_for_its_turn_when_the_device_gets_stuck_fails_too() -> None:
    caller, _ = reading(transfer_blocks_max=2, transfers_per_link_max=2, cpu_frames=4)
    first, second = caller.world.moving(*READ)
    caller.world.end(first, late=[0, 1])
    assert caller.state(1) is SequenceState.RESIDENT
    assert caller.sequence(1).filled_tokens == 0
    caller.world.end(second)
    caller.world.return_frames(first)
    caller.world.drain()
    caller.step(free(1))
    caller.step()
    assert caller.world.free_frames()[0] == 16


def test_a_late_frame_comes_back_once_and_only_if_it_was_late() -> None:
    caller, moving = reading()
    world = caller.world
    world.end(moving, late=[0, 1])
    for positions in ((2,), (0, 0), (0, 7)):
        with pytest.raises(CheckFailed, match="came back"):
            world.store.handle(FramesReturned(time=1, transfer=moving.transfer.id, positions=positions))
    world.return_frames(moving)
    with pytest.raises(CheckFailed, match="not late"):
        world.store.handle(FramesReturned(time=1, transfer=moving.transfer.id, positions=(0,)))
    with pytest.raises(CheckFailed, match="not late"):
        world.store.handle(FramesReturned(time=1, transfer=TransferId(99), positions=(0,)))


def test_only_failed_reads_can_be_late() -> None:
    caller, moving = reading()
    with pytest.raises(CheckFailed, match="only a failed read"):
        caller.world.store.handle(TransferEnded(time=1, transfer=moving.transfer.id, late=(0,)))
    world = World(make_store(gpu_frames=16, cpu_frames=8))
    caller = Caller(world)
    caller.cache(TOKENS)
    copy = world.moving(Tier.GPU, Tier.CPU)[0].transfer.id
    with pytest.raises(CheckFailed, match="only a failed read"):
        world.store.handle(TransferEnded(time=1, transfer=copy, failed=(0,), late=(0,)))


def test_a_waiter_that_is_gone_leaves_late_frames_to_the_device() -> None:
    caller, moving = reading()
    caller.close_tethers()
    caller.world.end(moving, late=[0, 1, 2, 3])
    assert late_frames(caller) == 4
    caller.world.return_frames(moving)
    caller.world.drain()
    caller.world.check_nothing_held()
    assert caller.world.free_frames() == (16, 8, 32 - 4)
