"""The order of writes that are under way at once: their bytes go out together, their ends come one by one.

A ticket is taken when a write begins. With its turn, when all before it have ended, it may sync and commit.
So a batch is durable only after those that were begun before it, on which its blocks may hang. And it fails
where the one before it, which was under way when it began, has failed; so does the next one, and so on, up
to the first that was begun when nothing was under way any more.

That is also what makes one sync speak for all. The kernel tells an error of a file once, to the first sync
after it, whoever's bytes it was that were lost: a later sync of the same file then says that all is well.
The first sync after the error is that of the first in line, so that one fails; and whoever wrote bytes
before that sync stands behind it in the line, and fails with it, whether they were its bytes or not. A write
that is begun later writes its bytes later, and hears of its own errors.
"""

import threading
from types import TracebackType

__all__ = ["EarlierFailed", "Ticket", "Tickets"]


class EarlierFailed(Exception):
    """A write that was under way when this one began has failed: nothing of this one may be stored."""


class Ticket:
    """For one thread. As a context it ends with it: failed where that raises, and never before its turn."""

    def __init__(self, changed: threading.Condition, before: "Ticket | None") -> None:
        self._changed = changed
        # The one that was under way when this was taken; it has seen to those before it.
        self._before = before
        self._before_failed = False
        self.is_ended = self.has_failed = False

    def __enter__(self) -> "Ticket":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(failed=kind is not None)

    def wait_turn(self) -> None:
        """Returns when all before it have ended; EarlierFailed where they failed."""
        self._wait()
        if self._before_failed:
            raise EarlierFailed("a write that was begun before it has failed")

    def end(self, *, failed: bool) -> None:
        """Waits for its turn too. A second end says nothing."""
        self._wait()
        with self._changed:
            if not self.is_ended:
                self.is_ended, self.has_failed = True, failed or self._before_failed
                self._changed.notify_all()

    def _wait(self) -> None:
        with self._changed:
            while self._before is not None and not self._before.is_ended:
                self._changed.wait()
            if self._before is not None:
                self._before_failed, self._before = self._before.has_failed, None


class Tickets:
    """For any thread. The waits have no deadline of their own: each I/O of those before has one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._last: Ticket | None = None

    def take(self) -> Ticket:
        with self._changed:
            before = self._last if self._last is not None and not self._last.is_ended else None
            self._last = Ticket(self._changed, before)
            return self._last
