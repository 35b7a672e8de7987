"""The scrub looks at every block now and then, so that what has gone bad is known before it is needed."""

import logging
import threading
from collections.abc import Callable, Sequence

from kvstore.core.types import StoredKey
from kvstore.tiers.disk_health import WriteHealth
from kvstore.tiers.disk_pieces import PIECE_BYTES
from kvstore.tiers.disk_storage import Storage
from kvstore.tiers.disk_table import DiskFault

__all__ = ["Scrub"]

log = logging.getLogger(__name__)

# How long to leave a disk alone that fails.
FAILED_SECONDS = 60.0


class Scrub:
    """A thread of its own. `rounds`: how often it has been through."""

    def __init__(
        self,
        storage: Storage,
        health: WriteHealth,
        lost: Callable[[Sequence[StoredKey]], None],
        bytes_a_second: int,
        pause_seconds: float,
    ) -> None:
        self.rounds = 0
        self._storage = storage
        self._health = health
        self._lost = lost
        self._bytes_a_second = bytes_a_second
        self._pause_seconds = pause_seconds
        self._count = max(1, PIECE_BYTES // storage.geometry.slot_bytes)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvstore-disk-scrub", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """False where it hangs in a read."""
        self._stopped.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        name = b""
        while not self._stopped.is_set():
            try:
                if self._health.degraded:
                    self._stopped.wait(FAILED_SECONDS)
                    continue
                name, wrong = self._storage.verify_after(name, self._count, self._pace)
            except DiskFault as error:
                log.warning("the scrub can't read the index: %s", error)
                self._stopped.wait(FAILED_SECONDS)
                continue
            if wrong:
                self._lost(wrong)
            if not name:
                self.rounds += 1
                self._stopped.wait(self._pause_seconds)

    def _pace(self, size_bytes: int) -> None:
        """Before each read, so long that the rate is kept. A stop doesn't wait."""
        self._stopped.wait(size_bytes / self._bytes_a_second)
