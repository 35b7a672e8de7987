"""Movers: the same bytes after any journey, one end for each transfer, and no thread that dies in silence."""

import gc
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore.core.effects import DiskDelete, Transfer
from kvstore.core.errors import CheckFailed
from kvstore.core.types import Frame, StoredKey, Tier, TransferId
from kvstore.tiers.disk import DiskWriteFailed, ReadOutcome
from kvstore.tiers.movers import READ_THREADS, TRANSFERS_MAX, Movers
from kvstore.tiers.moves import frame_runs
from kvstore.tiers.pool import HostPool
from tests.tiers.helpers import CAP, chain, open_tier, stored

WAIT = 20.0
FRAMES = 24


class House:
    """All tiers and their movers, and the ends that have come in."""

    def __init__(self, folder: Path, block_bytes: int = 5_001, ranks: int = 1) -> None:
        self.gpu = HostPool("gpu", FRAMES, block_bytes, ranks)
        self.cpu = HostPool("cpu", FRAMES, block_bytes, ranks)
        self.disk = open_tier(folder, CAP, block_bytes, ranks)
        self.ends: queue.SimpleQueue[tuple[TransferId, tuple[int, ...]]] = queue.SimpleQueue()
        self.movers = Movers(
            self.gpu, self.cpu, self.disk, lambda id, failed, late: self.ends.put((id, failed))
        )
        self._last = 0

    def transfer(self, source: Tier, target: Tier, sources, targets, keys=()) -> Transfer:
        self._last += 1
        return Transfer(
            id=TransferId(self._last),
            source=source,
            target=target,
            source_frames=tuple(map(Frame, sources)),
            target_frames=tuple(map(Frame, targets)),
            keys=tuple(keys),
        )

    def move(self, source: Tier, target: Tier, sources, targets, keys=()) -> tuple[int, ...]:
        """One transfer from start to end; returns what failed."""
        transfer = self.transfer(source, target, sources, targets, keys)
        self.movers.start([transfer], [])
        id, failed = self.ends.get(timeout=WAIT)
        assert id == transfer.id
        return failed

    def to_disk(self, frames, keys: list[StoredKey]) -> tuple[int, ...]:
        return self.move(Tier.CPU, Tier.DISK, frames, range(len(keys)), keys)

    def from_disk(self, keys: list[StoredKey], frames) -> tuple[int, ...]:
        return self.move(Tier.DISK, Tier.CPU, range(len(keys)), frames, keys)

    def close(self) -> None:
        if self.movers.close(WAIT):
            self.disk.close()
            self.cpu.close()
            self.gpu.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()
    assert made.ends.empty(), "an end too many"


def fill(pool: HostPool) -> None:
    for rank in range(pool.ranks):
        frames = pool.frames(rank)
        frames[:] = np.frombuffer(os.urandom(frames.nbytes), np.uint8).reshape(frames.shape)


def blocks(pool: HostPool, frames) -> np.ndarray:
    """[rank, position, block_bytes]"""
    return np.stack([pool.frames(rank)[list(frames), : pool.block_bytes] for rank in range(pool.ranks)])


# ------------------------------------------------------------------------------ journeys


@pytest.mark.parametrize("block_bytes", [1, 4_095, 4_096, 5_001, 368_640])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_same_bytes_after_the_whole_journey(tmp_path, block_bytes, ranks):
    house = House(tmp_path, block_bytes, ranks)
    fill(house.gpu)
    at_first, below, above, at_last = [3, 4, 5, 9, 2], [0, 1, 7, 8, 6], [20, 11, 12, 13, 1], [15, 16, 2, 3, 4]
    before = blocks(house.gpu, at_first)
    keys = chain(5)
    assert house.move(Tier.GPU, Tier.CPU, at_first, below) == ()
    assert house.to_disk(below, keys) == ()
    fill(house.gpu)
    fill(house.cpu)
    assert house.from_disk(keys, above) == ()
    assert house.move(Tier.CPU, Tier.GPU, above, at_last) == ()
    assert np.array_equal(blocks(house.gpu, at_last), before)
    house.close()


def test_a_copy_touches_its_own_frames_alone(house):
    fill(house.gpu)
    fill(house.cpu)
    before = house.cpu.frames(0).copy()
    house.move(Tier.GPU, Tier.CPU, [0, 1, 5], [10, 11, 12])
    others = [frame for frame in range(FRAMES) if frame not in (10, 11, 12)]
    assert np.array_equal(house.cpu.frames(0)[others], before[others])


@pytest.mark.parametrize(
    ("source", "target", "runs"),
    [
        ([], [], []),
        ([3], [5], [(3, 5, 1)]),
        ([1, 2, 3], [7, 8, 9], [(1, 7, 3)]),
        ([1, 2, 3], [7, 9, 10], [(1, 7, 1), (2, 9, 2)]),
        ([1, 2, 4], [7, 8, 9], [(1, 7, 2), (4, 9, 1)]),
        ([3, 2, 1], [7, 8, 9], [(3, 7, 1), (2, 8, 1), (1, 9, 1)]),
    ],
)
def test_neighbours_go_as_one(source, target, runs):
    assert list(frame_runs(source, target)) == runs


def test_a_bad_block_fails_alone(house):
    fill(house.cpu)
    keys = chain(3)
    house.to_disk([0, 1, 2], keys)
    house.disk.delete([keys[1]])
    assert house.from_disk([*keys, stored(77)], [10, 11, 12, 13]) == (1, 3)
    assert np.array_equal(blocks(house.cpu, [0, 2]), blocks(house.cpu, [10, 12]))


def test_a_write_that_fails_fails_whole_and_the_link_goes_on(house, monkeypatch):
    def full(keys, payloads):
        raise DiskWriteFailed("full")

    monkeypatch.setattr(house.disk, "write", full)
    assert house.to_disk([0, 1, 2], chain(3)) == (0, 1, 2)
    monkeypatch.undo()
    assert house.to_disk([0, 1, 2], chain(3)) == ()
    assert house.movers.alive()


def test_deletes_and_writes_keep_their_order(house):
    fill(house.cpu)
    keys = chain(2)
    house.to_disk([0, 1], keys)
    again = house.transfer(Tier.CPU, Tier.DISK, [5], [0], keys[:1])
    house.movers.start([again], [DiskDelete(keys=tuple(keys))])
    assert house.ends.get(timeout=WAIT) == (again.id, ())
    assert house.from_disk(keys, [10, 11]) == (1,)
    assert np.array_equal(blocks(house.cpu, [10]), blocks(house.cpu, [5]))


def test_many_transfers_end_once_each(house):
    ids = set()
    for round_ in range(10):
        transfers = [
            house.transfer(Tier.GPU, Tier.CPU, [0, 1], [2, 3]),
            house.transfer(Tier.CPU, Tier.GPU, [4, 5], [6, 7]),
            house.transfer(Tier.CPU, Tier.DISK, [8], [round_], [stored(round_)]),
        ]
        house.movers.start(transfers, [])
        ids |= {transfer.id for transfer in transfers}
    assert {house.ends.get(timeout=WAIT) for _ in ids} == {(id, ()) for id in ids}


# -------------------------------------------------------------------------------- faults


def test_an_unforeseen_error_fails_the_transfer_and_not_the_thread(house, monkeypatch):
    def broken(keys, outs, **_):
        raise RuntimeError("unforeseen")

    house.to_disk([0, 1], chain(2))
    monkeypatch.setattr(house.disk, "read", broken)
    assert house.from_disk(chain(2), [4, 5]) == (0, 1)
    monkeypatch.undo()
    assert house.from_disk(chain(2), [4, 5]) == ()
    assert house.movers.alive()
    assert house.movers.error is None


@pytest.mark.parametrize("frames", [[-1], [FRAMES], [0, FRAMES + 3]])
@pytest.mark.parametrize("side", ["source", "target"])
def test_frames_outside_of_a_pool_are_a_bug_that_shows(house, frames, side):
    inside = list(range(len(frames)))
    pair = (frames, inside) if side == "source" else (inside, frames)
    assert house.move(Tier.GPU, Tier.CPU, *pair) == tuple(inside)
    assert not house.movers.alive()
    assert isinstance(house.movers.error, CheckFailed)


def test_what_would_kill_a_thread_shows_and_each_transfer_ends(house, monkeypatch):
    def dies(keys, outs, **_):
        raise SystemExit("died")

    monkeypatch.setattr(house.disk, "read", dies)
    transfers = [house.transfer(Tier.DISK, Tier.CPU, [0], [1], [stored(1)]) for _ in range(2)]
    house.movers.start(transfers, [])
    # A link may have several threads: in which order they end is open.
    assert {house.ends.get(timeout=WAIT) for _ in transfers} == {
        (transfer.id, (0,)) for transfer in transfers
    }
    assert not house.movers.alive()
    assert isinstance(house.movers.error, SystemExit)


def test_an_end_that_cannot_be_told_shows(tmp_path):
    def closed(id, failed, late):
        raise RuntimeError("Event loop is closed")

    with HostPool("gpu", 4, 100, 1) as gpu, HostPool("cpu", 4, 100, 1) as cpu:
        movers = Movers(gpu, cpu, None, closed)
        transfer = Transfer(
            id=TransferId(1),
            source=Tier.GPU,
            target=Tier.CPU,
            source_frames=(Frame(0),),
            target_frames=(Frame(0),),
        )
        movers.start([transfer], [])
        assert movers.close(WAIT)
        assert not movers.alive()
        assert "closed" in str(movers.error)


def test_more_transfers_than_the_bound_are_a_bug(house, monkeypatch):
    held = threading.Event()
    monkeypatch.setattr(
        house.disk, "read", lambda keys, outs, **_: [ReadOutcome.GOOD] * (len(keys) * held.wait(WAIT))
    )
    transfers = [house.transfer(Tier.DISK, Tier.CPU, [0], [1], [stored(1)]) for _ in range(TRANSFERS_MAX)]
    house.movers.start(transfers, [])
    with pytest.raises(CheckFailed, match="in flight"):
        house.movers.start([house.transfer(Tier.DISK, Tier.CPU, [0], [1], [stored(1)])], [])
    held.set()
    assert {house.ends.get(timeout=WAIT) for _ in transfers} == {(transfer.id, ()) for transfer in transfers}


def test_a_tier_that_is_not_there_is_a_bug(tmp_path):
    with HostPool("gpu", 4, 100, 1) as gpu:
        movers = Movers(gpu, None, None, lambda id, failed, late: None)
        for source, target in ((Tier.GPU, Tier.CPU), (Tier.CPU, Tier.DISK), (Tier.GPU, Tier.DISK)):
            transfer = Transfer(
                id=TransferId(1), source=source, target=target, source_frames=(), target_frames=()
            )
            with pytest.raises(CheckFailed, match="no link"):
                movers.start([transfer], [])
        assert movers.alive()
        assert movers.close(WAIT)


# --------------------------------------------------------------------------------- close


def test_close_works_off_what_was_started(house):
    fill(house.cpu)
    transfers = [house.transfer(Tier.CPU, Tier.DISK, [n], [n], [stored(n)]) for n in range(10)]
    house.movers.start(transfers, [])
    assert house.movers.close(WAIT)
    assert [house.ends.get(timeout=0) for _ in transfers] == [(transfer.id, ()) for transfer in transfers]
    assert len(house.disk.found(house.cpu.block_bytes)) == 10
    with pytest.raises(CheckFailed):
        house.movers.start([house.transfer(Tier.GPU, Tier.CPU, [0], [0])], [])


def test_close_gives_up_threads_that_hang_and_ends_what_waits_behind_them(house, monkeypatch):
    held, begun = threading.Event(), threading.Semaphore(0)

    def hangs(keys, outs, **_):
        begun.release()
        return [ReadOutcome.GOOD] * (len(keys) * held.wait(WAIT))

    monkeypatch.setattr(house.disk, "read", hangs)
    under_way = [house.transfer(Tier.DISK, Tier.CPU, [0], [1], [stored(1)]) for _ in range(READ_THREADS)]
    behind = house.transfer(Tier.DISK, Tier.CPU, [0], [1], [stored(1)])
    house.movers.start([*under_way, behind], [])
    for _ in under_way:
        assert begun.acquire(timeout=WAIT)
    assert not house.movers.close(0.01)
    assert house.ends.get(timeout=0) == (behind.id, (0,))
    held.set()
    assert {house.ends.get(timeout=WAIT) for _ in under_way} == {(each.id, ()) for each in under_way}
    assert house.movers.close(WAIT)


def test_nothing_is_left_open(tmp_path):
    gc.collect()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    house = House(tmp_path, ranks=2)
    fill(house.gpu)
    house.move(Tier.GPU, Tier.CPU, [0, 1], [0, 1])
    house.to_disk([0, 1], chain(2))
    house.close()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads
