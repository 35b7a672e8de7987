"""The one thread that makes all driver calls of a device.

Two threads in the driver can lock each other out, and with Python's lock the whole process: so nobody else
calls it, and it calls nobody back. Work comes in by a queue; copies go to a stream a direction, their events
are asked for by the same thread, often while copies are under way and never else; what is slow and can wait
(pinning) is done one step at a time in between. It never waits for an event: a stream that stands still keeps
nobody but its own copies.

A device that is lost ends the thread: all that is under way fails, and so does all that comes later.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from enum import IntEnum
from typing import Any, TypeVar

from kvstore.core.errors import CheckFailed
from kvstore.cuda.driver import CudaFailed, Device, Driver
from kvstore.tiers.cuda_streams import Copies, CopyStream

__all__ = ["CudaThread", "DeviceLost", "Direction", "Step"]

# Between two looks at the events: soon after a copy was given or has ended, ever later then.
POLL_SECONDS_MIN = 50e-6
POLL_SECONDS_MAX = 1e-3
# After a step in the background, so many times as long as it took goes to others: here, and in other
# processes, whose calls wait while memory is pinned.
PAUSE_FACTOR = 3.0
CLOSE_SECONDS = 5.0

log = logging.getLogger(__name__)

Result = TypeVar("Result")
# Something for the background. True: there is more of it.
Step = Callable[[Device], bool]
Work = Callable[[Device], None]


class Direction(IntEnum):
    """Of copies, as the device sees them."""

    TO_HOST = 0
    TO_DEVICE = 1


class DeviceLost(CheckFailed):
    """The device, or this process's context on it. Not a bug, but nothing goes on after it either."""


class CudaThread:
    """Opens the device; raises what the driver says where it can't."""

    def __init__(self, driver: Driver, uuid: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self.uuid = uuid
        # Why the thread has ended, if not by `close`.
        self.error: DeviceLost | None = None
        self._driver = driver
        self._now = now
        self._changed = threading.Condition()
        self._work: deque[Work] = deque()
        self._steps: deque[Step] = deque()
        self._step_due = 0.0
        self._streams: list[CopyStream] = []
        self._pause = POLL_SECONDS_MIN
        self._closing = False
        # Of calls that were put and have not ended: they fail with the thread.
        self._waiting: set[Future[Any]] = set()
        opened: Future[None] = Future()
        # A daemon: a driver that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, args=(opened,), name=f"kvstore-{uuid}", daemon=True)
        self._thread.start()
        opened.result()

    def call(self, work: Callable[[Device], Result], *, timeout: float | None = None) -> Result:
        """Has the thread do something short with the device. TimeoutError: it was not done by then; it may
        be done later."""
        ended: Future[Result] = Future()

        def run(device: Device) -> None:
            try:
                result = work(device)
            except CudaFailed as error:
                ended.set_exception(self._lose(error) if error.is_lost else error)
                if error.is_lost:
                    raise
            except BaseException as error:
                ended.set_exception(error)
            else:
                ended.set_result(result)

        self._put(run, ended)
        return ended.result(timeout)

    def copy(self, direction: Direction, copies: Copies) -> Future[float]:
        """Returns at once. The future is done when nothing of it is under way any more, whatever came of it:
        the seconds it took, CudaFailed, or DeviceLost."""
        ended: Future[float] = Future()

        def run(device: Device) -> None:
            # The stream ends it from here on.
            self._waiting.discard(ended)
            self._streams[direction].submit(copies, ended)
            self._pause = POLL_SECONDS_MIN

        self._put(run, ended)
        return ended

    def add_step(self, step: Step) -> None:
        """To be done in the background, again and again until it says that there is no more."""
        with self._changed:
            self._steps.append(step)
            self._changed.notify()

    @property
    def stalled_seconds(self) -> float:
        """For how long a copy that has its stream to itself has been waited for."""
        return max((stream.waiting_seconds() for stream in self._streams), default=0.0)

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Lets what is under way end. False: it had not by then, and the thread is left to itself."""
        with self._changed:
            self._closing = True
            self._steps.clear()
            self._changed.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _put(self, work: Work, ended: "Future[Result]") -> None:
        with self._changed:
            if self.error is not None or self._closing:
                ended.set_exception(self.error or DeviceLost(f"{self.uuid} is closed"))
                return
            self._waiting.add(ended)
            self._work.append(work)
            ended.add_done_callback(self._waiting.discard)
            self._changed.notify()

    # --- In the thread.

    def _run(self, opened: Future[None]) -> None:
        try:
            with ExitStack() as undo:
                device = self._driver.open(self.uuid)
                undo.callback(self._give_back, device.close)
                undo.enter_context(device.current())
                for _ in Direction:
                    stream = CopyStream(device, self._now)
                    undo.callback(self._give_back, stream.close)
                    self._streams.append(stream)
                opened.set_result(None)
                try:
                    self._serve(device)
                except BaseException as error:
                    self._fail_all(self._lose(error))
        except BaseException as error:
            if opened.done():
                log.warning("%s is not left as it was: %s", self.uuid, error)
            else:
                opened.set_exception(error)

    def _give_back(self, close: Callable[[], None]) -> None:
        """What the driver does not take back goes with the process; all else is given back all the same."""
        try:
            close()
        except CudaFailed as error:
            if not error.is_lost:
                log.warning("not all of %s is given back: %s", self.uuid, error)

    def _serve(self, device: Device) -> None:
        """Until it is to close and has nothing under way."""
        while self._wait():
            while self._work:
                self._work.popleft()(device)
            ended_some = [stream.poll() for stream in self._streams]
            self._pause = POLL_SECONDS_MIN if any(ended_some) else min(self._pause * 2, POLL_SECONDS_MAX)
            self._do_step(device)

    def _wait(self) -> bool:
        """Until there is something to do. False: there never will be."""
        with self._changed:
            while not self._work:
                is_idle = all(stream.is_idle for stream in self._streams)
                if self._closing and is_idle:
                    return False
                wait = None if is_idle else self._pause
                if self._steps:
                    due = self._step_due - self._now()
                    if due <= 0:
                        break
                    wait = due if wait is None else min(wait, due)
                self._changed.wait(wait)
                if wait is not None:
                    break
            return True

    def _do_step(self, device: Device) -> None:
        with self._changed:
            begin = self._now()
            if not self._steps or begin < self._step_due:
                return
            step = self._steps.popleft()
        more = step(device)
        end = self._now()
        self._step_due = end + PAUSE_FACTOR * (end - begin)
        if more:
            with self._changed:
                if not self._closing:
                    self._steps.append(step)

    def _lose(self, error: BaseException) -> DeviceLost:
        with self._changed:
            if self.error is None:
                self.error = DeviceLost(f"{self.uuid} is lost: {error}")
                self.error.__cause__ = error
            return self.error

    def _fail_all(self, error: DeviceLost) -> None:
        """Nothing runs on the device any more, so nothing is written any more."""
        for stream in self._streams:
            stream.give_up(error)
        with self._changed:
            waiting = [ended for ended in self._waiting if not ended.done()]
            self._work.clear()
            self._steps.clear()
        for ended in waiting:
            ended.set_exception(error)
