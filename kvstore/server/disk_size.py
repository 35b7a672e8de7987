"""What the disk's folder takes. A look at its files may hang with the device, so it has a thread of its own.

Asked on the event loop; what is told is the last look. A new one is begun when it is asked for and the last
is old, and never a second beside one that still runs.
"""

import logging
import threading
from collections.abc import Callable

from kvstore.server.clock import now

__all__ = ["DiskSize"]

FRESH_SECONDS = 1.0

log = logging.getLogger(__name__)


class DiskSize:
    """`look` gives bytes, or raises OSError: then what was seen before is still told."""

    def __init__(self, look: Callable[[], int]) -> None:
        self._look = look
        self._bytes = 0
        self._looked: float | None = None
        self._thread: threading.Thread | None = None

    def read(self) -> int:
        """Returns at once. 0 until the first look has ended."""
        is_looking = self._thread is not None and self._thread.is_alive()
        if not is_looking and (self._looked is None or now() - self._looked >= FRESH_SECONDS):
            # A daemon: one that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._run, name="kvstore-disk-size", daemon=True)
            self._thread.start()
        return self._bytes

    def _run(self) -> None:
        try:
            self._bytes = self._look()
        except OSError as error:
            # A file may go while it is looked at; of a device that fails the tier itself tells.
            log.debug("the disk's folder can't be looked at: %s", error)
        self._looked = now()
