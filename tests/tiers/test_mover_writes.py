"""Writes to disk in their mover: several under way, ends in order, and what the disk is told between."""

import errno
import queue
import threading
from pathlib import Path

import pytest

from kvstore.core.effects import DiskDelete, DiskSync, Transfer
from kvstore.core.types import WRITE, Frame, SyncId, Tier, TransferId
from kvstore.tiers.disk_tickets import Tickets
from kvstore.tiers.mover import Mover
from kvstore.tiers.mover_setup import MoverSetup
from kvstore.tiers.movers import WRITE_THREADS, Movers
from kvstore.tiers.moves import Part, PieceEnd
from kvstore.tiers.pacing import RealClock, TokenBucket
from kvstore.tiers.pool import HostPool
from tests.tiers.helpers import chain, open_tier, read, stored
from tests.tiers.test_disk_tickets import CAP, SIZE, WAIT, Gates

FRAME = 4096
# What each says that it took: longer than any test.
SECONDS = 1e6


def write(number: int, frame: int = 0) -> Transfer:
    return Transfer(
        id=TransferId(number),
        source=Tier.CPU,
        target=Tier.DISK,
        source_frames=(Frame(frame),),
        target_frames=(Frame(frame),),
        keys=(stored(number, number - 1 if number > 1 else None),),
    )


class House:
    """A mover whose moves wait for their gates, and all that it tells, in order. `fails`: without a gate."""

    def __init__(self, count: int, fails: set[int], threads: int = WRITE_THREADS) -> None:
        self.gates = {number: threading.Event() for number in range(1, count + 1)}
        self.begun = {number: threading.Event() for number in self.gates}
        self.told: queue.SimpleQueue[tuple] = queue.SimpleQueue()
        self._fails = fails
        self.measured: list[float] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.mover = Mover(
            MoverSetup(
                name="test",
                move=self._move,
                frame_bytes=FRAME,
                piece_bytes=0,
                ended=lambda id, failed, late: self.told.put((id, failed)),
                returned=lambda id, positions: None,
                bucket=TokenBucket(RealClock()),
                tell=lambda told: self.told.put((type(told).__name__,)),
                tickets=Tickets(),
                threads=threads,
                measured=self._measured,
            )
        )

    def _move(self, part: Part) -> PieceEnd:
        number = part.transfer.id
        self.begun[number].set()
        if number in self._fails:
            return PieceEnd(failed=(0,))
        assert self.gates[number].wait(WAIT)
        return PieceEnd(seconds=SECONDS)

    def _measured(self, size: int, seconds: float) -> None:
        """Between what a transfer has done and its end."""
        self.measured.append(seconds)
        assert self.may_end.wait(WAIT)

    def next(self) -> tuple:
        return self.told.get(timeout=WAIT)

    def close(self) -> None:
        self.mover.put_stop()
        assert self.mover.join(WAIT)
        assert self.told.empty()


def test_ends_are_told_in_the_order_of_the_transfers_also_of_what_fails_at_once():
    house = House(3, fails={2})
    for number in (1, 2, 3):
        house.mover.put(write(number))
    for begun in house.begun.values():
        assert begun.wait(WAIT), "they are not under way together"
    house.gates[3].set()
    house.gates[1].set()
    assert [house.next() for _ in range(3)] == [(1, ()), (2, (0,)), (3, ())]
    house.close()


def test_an_end_waits_for_that_of_an_earlier_one_whose_thread_is_slow():
    house = House(2, fails={2}, threads=2)
    house.may_end.clear()
    house.mover.put(write(1))
    assert house.begun[1].wait(WAIT)
    house.mover.put(write(2))
    house.gates[1].set()
    # The thread of the second comes to this when it has done with that.
    house.mover.put_told(DiskDelete(keys=()))
    assert house.next() == ("DiskDelete",)
    house.may_end.set()
    assert [house.next() for _ in range(2)] == [(1, ()), (2, (0,))]
    house.close()


def test_a_delete_before_a_write_waits_for_no_end_of_one_before_it():
    """In a full tier there is one before each write: they would never overlap."""
    house = House(2, fails=set())
    house.mover.put(write(1))
    assert house.begun[1].wait(WAIT)
    house.mover.put_told(DiskDelete(keys=()))
    house.mover.put(write(2))
    assert house.next() == ("DiskDelete",)
    assert house.begun[2].wait(WAIT)
    house.gates[2].set()
    house.gates[1].set()
    assert [house.next() for _ in range(2)] == [(1, ()), (2, ())]
    house.close()


def test_a_sync_is_asked_for_after_all_that_was_given_before_it():
    for _ in range(20):
        house = House(2, fails=set())
        house.mover.put(write(1))
        house.mover.put(write(2))
        house.mover.put_told(DiskDelete(keys=()))
        house.mover.put_told(DiskSync(sync=SyncId(1)))
        assert house.next() == ("DiskDelete",)
        house.gates[2].set()
        house.gates[1].set()
        told = [house.next() for _ in range(3)]
        assert told == [(1, ()), (2, ()), ("DiskSync",)]
        house.close()


def test_what_a_write_took_is_counted_from_the_end_before_it():
    """Else a link with several under way would seem as many times slower."""
    house = House(2, fails=set())
    for number in (1, 2):
        house.mover.put(write(number))
        assert house.begun[number].wait(WAIT)
    house.gates[1].set()
    house.next()
    house.gates[2].set()
    house.next()
    house.close()
    assert sum(house.measured) < 2 * SECONDS


@pytest.fixture
def tiers(tmp_path: Path):
    """Real ones, and a gate before each sync."""
    files = Gates()
    ends: queue.SimpleQueue[tuple] = queue.SimpleQueue()
    disk = open_tier(tmp_path, CAP, SIZE, files=files)
    with HostPool("gpu", 2, SIZE, 1) as gpu, HostPool("cpu", 8, SIZE, 1) as cpu:
        movers = Movers(gpu, cpu, disk, lambda id, failed, late: ends.put((id, failed)))
        yield movers, disk, files, ends
        assert movers.close(WAIT)
    assert disk.close(60)


def test_where_one_fails_those_begun_behind_it_fail(tiers):
    movers, disk, files, ends = tiers
    files.sync_gate.clear()
    files.errors = [OSError(errno.EIO, "lost")]
    movers.start([write(number, number) for number in (1, 2, 3)], [])
    assert files.in_sync.acquire(timeout=WAIT)
    while movers.by_link[WRITE].transfers_queued:
        threading.Event().wait(0.001)
    files.sync_gate.set()
    assert [ends.get(timeout=WAIT) for _ in range(3)] == [(1, (0,)), (2, (0,)), (3, (0,))]
    assert not any(read(disk, key, SIZE) for key in chain(4))


def test_in_a_full_tier_writes_are_under_way_together(tiers):
    """Each needs the slot that the delete before it frees; the first has not even been synced by then."""
    movers, disk, files, ends = tiers
    capacity = disk.capacity_blocks(SIZE, 1)
    for number in range(100, 100 + capacity):
        disk.write([stored(number)], [[memoryview(bytes(SIZE))]])
    files.in_sync = threading.Semaphore(0)
    files.sync_gate.clear()
    for number in (1, 2, 3):
        movers.start([write(number, number)], [DiskDelete(keys=(stored(99 + number),))])
    assert files.in_sync.acquire(timeout=WAIT)
    while movers.by_link[WRITE].transfers_queued:
        threading.Event().wait(0.001)
    files.sync_gate.set()
    assert [ends.get(timeout=WAIT) for _ in range(3)] == [(1, ()), (2, ()), (3, ())]
    assert disk.held_blocks == capacity
