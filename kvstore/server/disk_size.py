"""What the disk's folder takes, and how large it can be. A look may hang with the device, so it has a thread
of its own.

Asked on the event loop. A look is begun when it is asked for and the last is old, and never a second beside
one that still runs. Whoever asks waits for its end, but not for long: then the last look is told.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from kvstore.server.clock import now
from kvstore.tiers.disk_folder import FolderSize

__all__ = ["DiskSize"]

FRESH_SECONDS = 1.0
# What a report may be held up for by a device that is slow.
WAIT_SECONDS = 0.25

log = logging.getLogger(__name__)


class DiskSize:
    """`look` may raise OSError: then what was seen before is still told. All zeros until one has ended."""

    def __init__(self, look: Callable[[], FolderSize]) -> None:
        self._look = look
        self._looked: float | None = None
        # Of the look that runs, or of the last one.
        self._ended = Future[None]()
        self._ended.set_result(None)
        self.last = FolderSize(held_bytes=0, obtainable_bytes=0)

    async def look(self) -> None:
        """When it returns `last` is fresh, or the device is slow."""
        self.begin()
        if not self._ended.done():
            # Not `wait_for`, which cancels what it waits for: others may wait for the same.
            await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=WAIT_SECONDS)

    def begin(self) -> None:
        """Returns at once."""
        if self._ended.done() and (self._looked is None or now() - self._looked >= FRESH_SECONDS):
            self._ended = Future()
            # A daemon: one that hangs must not keep the process from ending.
            threading.Thread(target=self._run, name="kvstore-disk-size", daemon=True).start()

    def _run(self) -> None:
        try:
            self.last = self._look()
        except OSError as error:
            # A file may go while it is looked at; of a device that fails the tier itself tells.
            log.debug("the disk's folder can't be looked at: %s", error)
        finally:
            self._looked = now()
            self._ended.set_result(None)
