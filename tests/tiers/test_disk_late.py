"""I/Os that come back late or never: who waits for them, and what they hold until then."""

import contextlib
import queue
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from kvstore.tiers.disk import DiskWriteFailed, ReadOutcome
from kvstore.tiers.files import DirectFiles
from tests.tiers.helpers import (
    chain,
    frames,
    open_tier,
    read,
    stored,
    write,
)

SMALL = 4 << 20


SIZE = 100_000


class Hanging(DirectFiles):
    """Calls of the kind in `kind` wait until `go`, and then do what they were to do."""

    def __init__(self, kind: str = "") -> None:
        self.kind = kind
        self.go = threading.Event()

    def read(self, fd, parts, offset):
        self._wait("read")
        super().read(fd, parts, offset)

    def write(self, fd, parts, offset):
        self._wait("write")
        super().write(fd, parts, offset)

    def sync(self, fd):
        self._wait("sync")
        super().sync(fd)

    def _wait(self, kind):
        if kind == self.kind:
            assert self.go.wait(60)


@pytest.fixture
def hanging(tmp_path: Path, clock):
    files = Hanging()
    tier = open_tier(tmp_path, SMALL, SIZE, clock=clock, files=files, deadline_seconds=0.2)
    yield tier, files
    files.go.set()
    assert tier.close(60)


def test_a_late_read_is_told_when_it_returns_at_last(hanging):
    tier, files = hanging
    data = write(tier, chain(2), SIZE)
    files.kind = "read"
    back: queue.SimpleQueue[int] = queue.SimpleQueue()
    outs = [frames(SIZE), frames(SIZE), frames(SIZE)]
    outcomes = tier.read([*chain(2), stored(99)], outs, returned=back.put)
    assert outcomes == [ReadOutcome.LATE, ReadOutcome.LATE, ReadOutcome.BAD]
    assert tier.counts.late_reads == 2
    assert tier.late_count == 1
    assert back.empty()
    files.go.set()
    assert sorted(back.get(timeout=60) for _ in range(2)) == [0, 1]
    assert [out[0].tobytes() for out in outs[:2]] == data, "it was still written to"
    assert [read(tier, key, SIZE) for key in chain(2)] == data
    assert tier.late_count == 0


def test_where_all_threads_hang_nobody_waits_again(hanging):
    tier, files = hanging
    write(tier, chain(8), SIZE)
    files.kind = "read"
    for key in chain(4):
        assert tier.read([key], [frames(SIZE)]) == [ReadOutcome.LATE]
    # With the threads all gone, what is queued would never be begun. That is no fault of the block: it is
    # late as the others are, but its frame is free at once.
    back: queue.SimpleQueue[int] = queue.SimpleQueue()
    outcomes = tier.read(chain(8)[4:6], [frames(SIZE), frames(SIZE)], returned=back.put)
    assert outcomes == [ReadOutcome.LATE] * 2
    assert sorted(back.get_nowait() for _ in range(2)) == [0, 1]
    assert tier.counts.late_reads == 6
    files.go.set()


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_late_write_fails_and_its_slots_stay_taken_until_it_returns(hanging, clock, kind):
    tier, files = hanging
    write(tier, [stored(50)], SIZE)
    free = tier._layout.storage.space.free_count
    files.kind = kind
    with pytest.raises(DiskWriteFailed, match="not returned"):
        write(tier, chain(2), SIZE)
    assert tier.degraded
    assert read(tier, stored(50), SIZE) is not None
    assert tier._layout.storage.space.free_count == (free - 2 if kind == "write" else free)
    files.go.set()
    while tier.late_count:
        time.sleep(0.001)
    clock.now += 100
    data = write(tier, chain(tier.capacity_blocks(SIZE, 1) - 1), SIZE)
    assert not tier.degraded
    assert read(tier, stored(0), SIZE) == data[0]


class SlowToMake(DirectFiles):
    """A segment is not made before `gate` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.made: list[str] = []

    def create(self, path: Path, size_bytes: int) -> int:
        self.made.append(path.name)
        self.gate.wait()
        return super().create(path, size_bytes)


def test_a_segment_that_is_late_is_not_made_twice(tmp_path, clock):
    """Else the second time would give its slots away again, and the next segment would never be made."""
    files = SlowToMake()
    with closing(open_tier(tmp_path, SMALL, SIZE, clock=clock, files=files, deadline_seconds=0.2)) as disk:
        for _ in range(3):
            with pytest.raises(DiskWriteFailed):
                write(disk, chain(1), SIZE)
            clock.now += 100
        files.gate.set()
        while disk.late_count:
            time.sleep(0.001)
        assert files.made == ["segment-000000"]
        # The deadline is short, and a machine may be busy: what is late is tried again.
        capacity = disk.capacity_blocks(SIZE, 1)
        for key in chain(capacity):
            while True:
                with contextlib.suppress(DiskWriteFailed):
                    write(disk, [key], SIZE)
                    break
                clock.now += 100
        assert files.made == sorted(set(files.made))
        assert disk.held_blocks == capacity


def test_a_transaction_that_comes_through_late_is_taken_back(hanging, clock, monkeypatch):
    tier, files = hanging
    write(tier, [stored(50)], SIZE)
    put = tier._table.put

    def late(*arguments):
        assert files.go.wait(60)
        return put(*arguments)

    monkeypatch.setattr(tier._table, "put", late)
    with pytest.raises(DiskWriteFailed, match="not returned"):
        write(tier, chain(2), SIZE)
    monkeypatch.undo()
    files.go.set()
    while tier.late_count:
        time.sleep(0.001)
    clock.now += 100
    data = write(tier, chain(tier.capacity_blocks(SIZE, 1) - 1, first=100), SIZE)
    assert [read(tier, key, SIZE) for key in chain(2)] == [None, None]
    assert read(tier, stored(100), SIZE) == data[0]
