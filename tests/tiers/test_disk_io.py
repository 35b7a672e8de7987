"""Whose turn it is at the device, what is late, and what follows from it. Gates, no sleeps."""

import threading
import time
from collections.abc import Iterator
from typing import ClassVar

import pytest

from kvstore.core.errors import CheckFailed
from kvstore.tiers.disk_io import (
    READ_THREADS,
    READS_PER_WRITE,
    WRITE_BYTES_MAX,
    Io,
    IoKind,
    IoLate,
    IoNotBegun,
    IoThreads,
)

WAIT = 60.0


class Gate:
    """A call that says that it has begun, and ends when told to; at the latest with its test."""

    made: ClassVar[list["Gate"]] = []

    def __init__(self, log: list[str] | None = None, name: str = "") -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.made.append(self)
        self._log, self._name = log, name

    def __call__(self) -> str:
        if self._log is not None:
            self._log.append(self._name)
        self.begun.set()
        assert self.go.wait(WAIT)
        return self._name


def nothing() -> None:
    pass


def open_gates() -> None:
    for gate in Gate.made:
        gate.go.set()
    Gate.made.clear()


@pytest.fixture
def threads() -> Iterator[IoThreads]:
    made = IoThreads("test", WAIT)
    yield made
    open_gates()
    assert made.close(WAIT)


@pytest.fixture
def hasty() -> Iterator[IoThreads]:
    """Patient with nobody."""
    made = IoThreads("test", 0.05)
    yield made
    open_gates()
    assert made.close(WAIT)


def fill_readers(threads: IoThreads) -> list[tuple[Gate, Io[str]]]:
    gates = [Gate() for _ in range(READ_THREADS)]
    started = [(gate, threads.start(IoKind.READ, gate)) for gate in gates]
    for gate in gates:
        assert gate.begun.wait(WAIT)
    return started


def test_what_a_call_returns_or_raises_comes_back(threads):
    assert threads.start(IoKind.READ, lambda: 5).wait(nothing) == 5

    def fails() -> None:
        raise OSError("no")

    for kind in IoKind:
        with pytest.raises(OSError, match="no"):
            threads.start(kind, fails).wait(nothing)


def test_a_read_goes_before_all_writes_that_wait(threads):
    log: list[str] = []
    first = Gate(log, "write")
    first.go.clear()
    writes = [threads.start(IoKind.WRITE, first, WRITE_BYTES_MAX)]
    assert first.begun.wait(WAIT)
    writes += [threads.start(IoKind.WRITE, lambda: log.append("write"), 1 << 20) for _ in range(20)]
    reads = [threads.start(IoKind.READ, lambda: log.append("read")) for _ in range(5)]
    for read in reads:
        read.wait(nothing)
    assert log == ["write", *["read"] * 5], "none but the write that was in service"
    first.go.set()
    for write in writes:
        write.wait(nothing)
    assert log.count("write") == 21


def test_no_write_begins_while_a_read_is_in_service_and_one_at_a_time(threads):
    reading = fill_readers(threads)
    log: list[str] = []
    gates = [Gate(log, str(n)) for n in range(3)]
    writes = [threads.start(IoKind.WRITE, gate, WRITE_BYTES_MAX) for gate in gates]
    for gate, _ in reading[1:]:
        gate.go.set()
    for _, read in reading[1:]:
        read.wait(nothing)
    # One is still in service, and others come and go: there is every chance to begin.
    for _ in range(READS_PER_WRITE // 2):
        threads.start(IoKind.READ, nothing).wait(nothing)
    assert log == []
    reading[0][0].go.set()
    for number, (gate, write) in enumerate(zip(gates, writes, strict=True)):
        assert gate.begun.wait(WAIT)
        assert log == [str(n) for n in range(number + 1)]
        gate.go.set()
        write.wait(nothing)


def test_so_much_is_written_at_a_time_and_no_more(threads):
    gates = [Gate() for _ in range(3)]
    sizes = [WRITE_BYTES_MAX // 2, WRITE_BYTES_MAX // 2, 1]
    writes = [threads.start(IoKind.WRITE, gate, size) for gate, size in zip(gates, sizes, strict=True)]
    assert gates[0].begun.wait(WAIT)
    assert gates[1].begun.wait(WAIT)
    threads.start(IoKind.INDEX, nothing).wait(nothing)
    assert not gates[2].begun.is_set(), "whatever the number of threads"
    gates[0].go.set()
    assert gates[2].begun.wait(WAIT)
    large = Gate()
    threads.start(IoKind.WRITE, large, 10 * WRITE_BYTES_MAX)
    for gate, write in zip(gates, writes, strict=True):
        gate.go.set()
        write.wait(nothing)
    assert large.begun.wait(WAIT), "alone, a large one may go too"


def test_writes_have_a_turn_where_reads_never_end(threads):
    """Each read starts the next before it ends, so that one is always waiting, until the write is done or has
    been given up."""
    count = 0
    done = threading.Event()
    lock = threading.Lock()

    def read() -> None:
        nonlocal count
        with lock:
            count += 1
            if not done.is_set():
                threads.start(IoKind.READ, read)

    blocker = fill_readers(threads)
    write = threads.start(IoKind.WRITE, done.set)
    for _ in range(2 * READ_THREADS):
        threads.start(IoKind.READ, read)
    for gate, _ in blocker:
        gate.go.set()
    try:
        write.wait(nothing)
    finally:
        done.set()
    assert count >= READS_PER_WRITE - READ_THREADS


def test_the_end_comes_after_a_write_that_waits_for_reads():
    """Both of the writing threads are woken for the end, and one of them finds nothing to do after it."""
    threads = IoThreads("test", WAIT)
    reading, writing = fill_readers(threads), Gate()
    threads.start(IoKind.WRITE, writing)
    writing.go.set()
    ended: list[bool] = []
    closing = threading.Thread(target=lambda: ended.append(threads.close(WAIT / 4)))
    closing.start()
    while not threads._closed:
        time.sleep(0.001)
    # Time for the woken ones to look and to wait again; where they have not, this can't fail.
    time.sleep(0.05)
    for gate, _ in reading:
        gate.go.set()
    closing.join()
    assert ended == [True]


def test_commits_wait_for_neither(threads):
    reading, writing = fill_readers(threads), Gate()
    threads.start(IoKind.WRITE, writing)
    assert threads.start(IoKind.INDEX, lambda: "done").wait(nothing) == "done"
    for gate, _ in reading:
        gate.go.set()
    writing.go.set()


# --------------------------------------------------------------------------------- late


@pytest.mark.parametrize("kind", list(IoKind))
def test_a_late_one_is_told_when_it_returns_and_not_before(hasty, kind):
    gate, back = Gate(), threading.Event()
    io = hasty.start(kind, gate)
    with pytest.raises(IoLate, match="not returned"):
        io.wait(back.set)
    assert hasty.late_count == 1
    assert not back.is_set()
    gate.go.set()
    assert back.wait(WAIT)


def test_what_waits_behind_late_ones_is_never_begun(hasty):
    gates = [Gate() for _ in range(READ_THREADS)]
    for gate in gates:
        with pytest.raises(IoLate):
            hasty.start(IoKind.READ, gate).wait(nothing)
    begun = threading.Event()
    with pytest.raises(IoNotBegun):
        hasty.start(IoKind.READ, begun.set).wait(nothing)
    for gate in gates:
        gate.go.set()
    while hasty.late_count:
        hasty.start(IoKind.INDEX, nothing).wait(nothing)
    hasty.start(IoKind.READ, nothing).wait(nothing)
    assert not begun.is_set()


def test_late_reads_do_not_keep_writes_from_beginning(hasty):
    gate = Gate()
    with pytest.raises(IoLate):
        hasty.start(IoKind.READ, gate).wait(nothing)
    hasty.start(IoKind.WRITE, nothing).wait(nothing)
    gate.go.set()


def test_in_a_queue_that_moves_an_io_may_wait_longer_than_the_deadline():
    """Each is quick, all together take longer than the deadline."""
    threads = IoThreads("test", 0.2)
    pause = threading.Event()
    ios = [threads.start(IoKind.WRITE, lambda: pause.wait(0.02)) for _ in range(20)]
    assert [io.wait(nothing) for io in ios] == [False] * 20
    assert threads.close(WAIT)


def test_close_does_what_is_queued_and_gives_up_one_that_hangs():
    threads = IoThreads("test", WAIT)
    gate, log = Gate(), list[str]()
    threads.start(IoKind.WRITE, gate, WRITE_BYTES_MAX)
    threads.start(IoKind.WRITE, lambda: log.append("done"), 1)
    assert gate.begun.wait(WAIT)
    assert not threads.close(0.01)
    with pytest.raises(CheckFailed):
        threads.start(IoKind.READ, nothing)
    gate.go.set()
    assert threads.close(WAIT)
    assert log == ["done"]
