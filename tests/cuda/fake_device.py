"""A device of the fake driver: strict, and failing when told to.

A call of two threads at once, one outside of `current`, or a copy over what is not wholly mapped, or not
wholly within one pinned piece, is an error here, where the real one may be silent.
"""

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kvstore.cuda.calls import LOST as LOST_CODES
from kvstore.cuda.driver import CudaFailed
from tests.cuda.fake_memory import FakeMemory
from tests.cuda.fake_streams import FakeStreams, Step

__all__ = ["FakeDevice"]

PIECES_MOST = 3
LOST = "CUDA_ERROR_ILLEGAL_ADDRESS"


class FakeDevice:
    def __init__(
        self, uuid: str, memory: FakeMemory, streams: FakeStreams, *, exports_fds: bool, copies_batches: bool
    ) -> None:
        self._uuid = uuid
        self._exports_fds = exports_fds
        self._copies_batches = copies_batches
        self.memory = memory
        self.streams = streams
        self.opened = 0
        self.pinned: dict[int, int] = {}
        # By event: whether it is done.
        self.events: dict[int, bool] = {}
        self.calls: Counter[str] = Counter()
        # Threads that made calls, by identity.
        self.threads: set[int] = set()
        # What a call takes, by its name: called in the middle of it.
        self.during: dict[str, Callable[[], None]] = {}
        self.is_lost = False
        self._faults: dict[str, dict[int, str]] = {}
        self._current = threading.local()
        self._busy = threading.Lock()

    @property
    def uuid(self) -> str:
        return self._uuid

    @property
    def exports_fds(self) -> bool:
        return self._exports_fds

    @property
    def copies_batches(self) -> bool:
        return self._copies_batches

    # --- What a test does to it.

    def fail(self, call: str, *, after: int = 0, code: str = "CUDA_ERROR_INVALID_VALUE") -> None:
        """The next call of this name, or the one `after` so many more. By a code after which nothing works
        any more the device is lost."""
        self._faults.setdefault(call, {})[self.calls[call] + 1 + after] = code

    def lose(self) -> None:
        """As after a fault on the device: nothing runs, and every call says so."""
        self.is_lost = True
        self.streams.drop()

    def launch(self, stream: int, steps: Sequence[Step]) -> None:
        """A kernel: its steps run in this order, some time."""
        with self._calling("launch"):
            self.streams.put(stream, steps)

    @property
    def left_behind(self) -> dict[str, int]:
        """What somebody has not given back."""
        there = {
            "contexts": self.opened,
            "ranges": len(self.memory.ranges),
            "handles": len(self.memory.handles),
            "bytes": self.memory.used_bytes,
            "pinned": len(self.pinned),
            "streams": len(self.streams.by_number),
            "events": len(self.events),
        }
        return {name: count for name, count in there.items() if count}

    # --- The driver's calls.

    def open(self) -> None:
        """For the driver, which opens devices."""
        self.calls["open"] += 1
        self._fail_if_due("open")
        self.opened += 1

    @contextmanager
    def current(self) -> Iterator[None]:
        self.calls["current"] += 1
        self._fail_if_due("current")
        self._current.depth = getattr(self._current, "depth", 0) + 1
        try:
            yield
        finally:
            self._current.depth -= 1

    def close(self) -> None:
        self.calls["close"] += 1
        self._fail_if_due("close")
        self.opened -= 1

    def memory_free_bytes(self) -> int:
        with self._calling("memory_free_bytes"):
            return self.memory.size_bytes - self.memory.used_bytes

    def synchronize(self) -> None:
        with self._calling("synchronize"):
            self.streams.wait_empty()

    def granularity_bytes(self) -> int:
        with self._calling("granularity_bytes"):
            return self.memory.granularity

    def reserve(self, size: int) -> int:
        with self._calling("reserve"):
            return self.memory.reserve(size)

    def free_range(self, address: int, size: int) -> None:
        with self._calling("free_range"):
            self.memory.free_range(address, size)

    def create(self, size: int) -> int:
        with self._calling("create"):
            return self.memory.create(size)

    def release(self, handle: int) -> None:
        with self._calling("release"):
            self.memory.release(handle)

    def map(self, address: int, size: int, handle: int) -> None:
        with self._calling("map"):
            self.memory.map(address, size, handle)

    def unmap(self, address: int, size: int) -> None:
        with self._calling("unmap"):
            self.memory.unmap(address, size)

    def allow(self, address: int, size: int) -> None:
        with self._calling("allow"):
            self.memory.allow(address, size)

    def export_fd(self, handle: int) -> int:
        with self._calling("export_fd"):
            return self.memory.export_fd(handle)

    def import_fd(self, fd: int) -> int:
        with self._calling("import_fd"):
            return self.memory.import_fd(fd)

    def allocate(self, size: int) -> int:
        with self._calling("allocate"):
            return self.memory.allocate(size)

    def free(self, address: int) -> None:
        with self._calling("free"):
            self.memory.free(address)

    def export_ipc(self, address: int) -> bytes:
        with self._calling("export_ipc"):
            return self.memory.export_ipc(address)

    def open_ipc(self, handle: bytes) -> int:
        with self._calling("open_ipc"):
            return self.memory.open_ipc(handle)

    def close_ipc(self, address: int) -> None:
        with self._calling("close_ipc"):
            self.memory.close_ipc(address)

    def pin(self, address: int, size: int) -> None:
        with self._calling("pin"):
            if any(address < at + length and at < address + size for at, length in self.pinned.items()):
                raise CudaFailed("cuMemHostRegister", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED")
            self.pinned[address] = size

    def unpin(self, address: int) -> None:
        with self._calling("unpin"):
            if address not in self.pinned:
                raise CudaFailed("cuMemHostUnregister", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED")
            del self.pinned[address]

    def make_stream(self) -> int:
        with self._calling("make_stream"):
            return self.streams.add()

    def destroy_stream(self, stream: int) -> None:
        with self._calling("destroy_stream"):
            self.streams.remove(stream)

    def make_event(self) -> int:
        with self._calling("make_event"):
            event = max(self.events, default=0) + 1
            self.events[event] = True
            return event

    def destroy_event(self, event: int) -> None:
        with self._calling("destroy_event"):
            del self.events[event]

    def record(self, event: int, stream: int) -> None:
        with self._calling("record"):
            self.events[event] = False
            self.streams.put(stream, [lambda: self.events.update({event: True})])

    def is_done(self, event: int) -> bool:
        with self._calling("is_done"):
            return self.events[event]

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        with self._calling("copy"):
            self.streams.put(stream, self._steps("cuMemcpyAsync", target, source, size))

    def copy_batch(
        self, targets: Sequence[int], sources: Sequence[int], sizes: Sequence[int], stream: int
    ) -> None:
        """Where it is told to fail, the first half is under way all the same."""
        steps = [
            step
            for copy in zip(targets, sources, sizes, strict=True)
            for step in self._steps("cuMemcpyBatchAsync", *copy)
        ]
        self.streams.random.shuffle(steps)
        try:
            with self._calling("copy_batch"):
                pass
        except CudaFailed:
            if not self.is_lost:
                self.streams.put(stream, steps[: len(steps) // 2])
            raise
        self.streams.put(stream, steps)

    def _steps(self, call: str, target: int, source: int, size: int) -> list[Step]:
        """A copy in parts, in any order."""
        for address in (target, source):
            if not self.memory.is_device(call, address, size):
                self._check_host(call, address, size)
        cuts = sorted(self.streams.random.randrange(size + 1) for _ in range(PIECES_MOST - 1))
        bounds = list(zip([0, *cuts], [*cuts, size], strict=True))
        return [_part(target + start, source + start, stop - start) for start, stop in bounds if stop > start]

    def _check_host(self, call: str, address: int, size: int) -> None:
        """Wholly within what was pinned as one, or touching nothing that is pinned."""
        for at, length in self.pinned.items():
            touches = address < at + length and at < address + size
            if touches and not (at <= address and address + size <= at + length):
                raise CudaFailed(call, "CUDA_ERROR_INVALID_VALUE")

    @contextmanager
    def _calling(self, name: str) -> Iterator[None]:
        self.calls[name] += 1
        self.threads.add(threading.get_ident())
        if not self._busy.acquire(blocking=False):
            raise AssertionError(f"{name}: two threads at once in the driver")
        try:
            assert getattr(self._current, "depth", 0), f"{name}: no current context"
            if self.is_lost:
                raise CudaFailed(name, LOST, is_lost=True)
            self._fail_if_due(name)
            during = self.during.get(name)
            if during is not None:
                during()
            yield
        finally:
            self._busy.release()

    def _fail_if_due(self, name: str) -> None:
        code = self._faults.get(name, {}).pop(self.calls[name], "")
        if code in LOST_CODES:
            self.lose()
        if code:
            raise CudaFailed(name, code, is_lost=code in LOST_CODES)


def _part(target: int, source: int, size: int) -> Step:
    def run() -> None:
        ctypes.memmove(target, source, size)

    return run
