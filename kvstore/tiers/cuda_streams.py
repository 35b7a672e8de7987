"""Copies of one direction on one device: given to its stream, and their ends seen. For the device's thread.

A copy has ended when an event behind it is done, and then only: what had been given to the stream before a
call failed may still write, so a failure is told when that is over too. Where not even an event can be put
behind it, that is tried again. A stream that stands still is waited for.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass

from kvstore.cuda.driver import CudaFailed, Device

__all__ = ["Copies", "CopyStream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Addresses and bytes of copies that depend on none of each other."""

    targets: Sequence[int]
    sources: Sequence[int]
    sizes: Sequence[int]


@dataclass(slots=True)
class _UnderWay:
    """`error`: not all of it was given to the stream. `event`: none could be recorded yet."""

    ended: Future[float]
    begin: float
    size: int
    error: CudaFailed | None = None
    event: int | None = None


class CopyStream:
    """What fails for good (`CudaFailed.is_lost`) is raised; all else ends in the future of a copy.

    A future is given the seconds that the stream took for the copy, without what it did before.
    """

    def __init__(self, device: Device, now: Callable[[], float]) -> None:
        self._device = device
        self._now = now
        self._stream = device.make_stream()
        self._under_way: deque[_UnderWay] = deque()
        # Pooled: to destroy an event may wait for the device.
        self._events: list[int] = []
        self._ended_at = 0.0

    @property
    def is_idle(self) -> bool:
        return not self._under_way

    def waiting_seconds(self) -> float:
        """For how long the next copy to end has had the stream to itself. For any thread."""
        try:
            begin = self._under_way[0].begin
        except IndexError:
            return 0.0
        return max(0.0, self._now() - max(begin, self._ended_at))

    def submit(self, copies: Copies, ended: Future[float]) -> None:
        """From here on the future ends for sure: by `poll`, or by `give_up`."""
        work = _UnderWay(ended, self._now(), max(1, sum(copies.sizes)))
        self._under_way.append(work)
        try:
            if self._device.copies_batches:
                self._device.copy_batch(copies.targets, copies.sources, copies.sizes, self._stream)
            else:
                for target, source, size in zip(copies.targets, copies.sources, copies.sizes, strict=True):
                    self._device.copy(target, source, size, self._stream)
        except CudaFailed as error:
            if error.is_lost:
                raise
            work.error = error
        self._record(work)

    def poll(self) -> bool:
        """Ends what has ended; whether there was any."""
        ended: list[_UnderWay] = []
        try:
            while self._under_way:
                work = self._under_way[0]
                if work.event is None and not self._record(work):
                    break
                if work.event is None or not self._device.is_done(work.event):
                    break
                ended.append(self._under_way.popleft())
                self._events.append(work.event)
        finally:
            self._end(ended)
        return bool(ended)

    def give_up(self, error: BaseException) -> None:
        """The device does nothing any more."""
        while self._under_way:
            work = self._under_way.popleft()
            if work.event is not None:
                self._events.append(work.event)
            work.ended.set_exception(error)

    def close(self) -> None:
        """Raises CudaFailed when all has been tried."""
        with ExitStack() as undo:
            undo.callback(self._device.destroy_stream, self._stream)
            for event in self._events:
                undo.callback(self._device.destroy_event, event)

    def _end(self, ended: Sequence[_UnderWay]) -> None:
        """What is seen to have ended together has shared the time, by its bytes."""
        if not ended:
            return
        now = self._now()
        seconds, self._ended_at = now - max(ended[0].begin, self._ended_at), now
        total = sum(work.size for work in ended)
        for work in ended:
            if work.error is not None:
                work.ended.set_exception(work.error)
            else:
                work.ended.set_result(seconds * work.size / total)

    def _record(self, work: _UnderWay) -> bool:
        """Whether an event stands behind it now. One that is recorded later than it could is as good."""
        try:
            event = self._events.pop() if self._events else self._device.make_event()
        except CudaFailed as error:
            if error.is_lost:
                raise
            return False
        try:
            self._device.record(event, self._stream)
        except CudaFailed as error:
            self._events.append(event)
            if error.is_lost:
                raise
            return False
        work.event = event
        return True
