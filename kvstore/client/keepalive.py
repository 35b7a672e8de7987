"""The thread that keeps an idle engine alive, and sees at once when its service is not."""

import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from kvstore.client.errors import Refused, ServiceLost, Unanswered

__all__ = ["KeepAlive"]

# After a renewal that found no answer: soon enough for any lease, seldom enough for a stopped service.
RETRY_SECONDS = 0.25


class KeepAlive:
    """Renews when nothing else has called for `interval`; `end` hears why, should the service be gone.

    A tether is silent for life, so whatever can be read from it is its end.
    """

    def __init__(
        self,
        tethers: Sequence[int],
        interval: float,
        renew: Callable[[], None],
        end: Callable[[str], None],
    ) -> None:
        self._interval = interval
        self._renew = renew
        self._end = end
        self._due = time.monotonic() + interval
        self._left = threading.Event()
        self._looking = threading.Lock()  # Held while the thread looks at the tethers.
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        for descriptor in (self._wake, *tethers):
            self._poll.register(descriptor, select.POLLIN | select.POLLRDHUP)
        self._thread = threading.Thread(target=self._run, name="kvstore-keep-alive", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put_off(self) -> None:
        """Another call has just renewed the lease."""
        self._due = time.monotonic() + self._interval

    def leave(self) -> None:
        """When this returns the thread looks at no tether any more, so that they may be closed."""
        self._left.set()
        os.eventfd_write(self._wake, 1)
        with self._looking:
            pass

    def join(self) -> None:
        """Once, after `leave`. A renewal that is under way is waited for: it has a deadline."""
        self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._left.is_set():
            with self._looking:
                tether_ended = not self._left.is_set() and self._look()
            if self._left.is_set():
                return
            if tether_ended:
                return self._end("the service has ended: its side of a tether is closed")
            if time.monotonic() >= self._due:
                self._try_renew()

    def _look(self) -> bool:
        """Whether a tether has ended; waits for that until the next renewal is due."""
        seconds = max(0.0, self._due - time.monotonic())
        return bool(self._poll.poll(seconds * 1000))

    def _try_renew(self) -> None:
        try:
            self._renew()
            self.put_off()
        except (Unanswered, Refused):
            # Not yet lost: a stopped service may go on, a dead one ends its tethers. Refused can be only a
            # completed step that a Step has overtaken on the way, and that one has renewed the lease.
            self._due = time.monotonic() + min(RETRY_SECONDS, self._interval)
        except ServiceLost as lost:
            self._end(str(lost))
