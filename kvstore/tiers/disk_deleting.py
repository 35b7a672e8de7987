"""Blocks taken out of the index, and transactions of the index in general: with a deadline, and made up for
where they fail."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from kvstore.tiers.disk_health import DiskCounts, WriteHealth
from kvstore.tiers.disk_io import IoKind, IoThreads
from kvstore.tiers.disk_space import Space
from kvstore.tiers.disk_table import BlockTable, DiskFault

__all__ = ["Deleter", "commit"]

log = logging.getLogger(__name__)

T = TypeVar("T")
# Blocks deleted in one transaction, where there may be very many.
DELETE_MAX = 1024


def commit(threads: IoThreads, work: Callable[[], T], returned: Callable[[], None] | None = None) -> T:
    """Does `work`, which holds one transaction and what follows from it, in the index's thread.

    A DiskFault where it failed or is late. If it is late, `returned` is called when it has ended.
    """
    return threads.start(IoKind.INDEX, work).wait(returned or _pass)


class Deleter:
    """For any thread. What can't be deleted is owed, and doesn't keep others from being deleted."""

    def __init__(
        self,
        folder: Path,
        table: BlockTable,
        threads: IoThreads,
        space: Space,
        counts: DiskCounts,
        health: WriteHealth,
    ) -> None:
        self._folder = folder
        self._table = table
        self._threads = threads
        self._space = space
        self._counts = counts
        self._health = health
        self._owed: dict[bytes, None] = {}
        self._lock = threading.Lock()

    def delete(self, names: Sequence[bytes]) -> None:
        """These and what is owed. What fails is owed from then on."""
        with self._lock:
            wanted = list(dict.fromkeys([*self._owed, *names]))
            self._owed = {}
        for start in range(0, len(wanted), DELETE_MAX):
            part = wanted[start : start + DELETE_MAX]
            try:
                commit(self._threads, lambda part=part: self._remove(part))  # type: ignore[misc]  # Bound now.
            except DiskFault as error:
                self.owe(wanted[start:])
                self._counts.delete_errors += 1
                self._health.failed(f"{type(error).__name__}: {error}")
                log.warning("%s: %d blocks not deleted yet: %s", self._folder, len(wanted) - start, error)
                return
        self._health.retry_now()

    def pay(self) -> None:
        """Deletes what is owed, if anything."""
        if self._owed:
            self.delete([])

    def owe(self, names: Iterable[bytes]) -> None:
        with self._lock:
            self._owed.update(dict.fromkeys(names))

    def forgive(self, names: Iterable[bytes]) -> None:
        """They have been written again."""
        with self._lock:
            for name in names:
                self._owed.pop(name, None)

    def drop(self, records: Mapping[bytes, bytes]) -> list[bytes]:
        """Deletes bad blocks; returns their names but for those of which the record is another by now."""
        try:
            return commit(self._threads, lambda: self._remove_if(records))
        except DiskFault as error:
            self.owe(records)
            self._counts.delete_errors += 1
            log.warning("%s: %d bad blocks not deleted yet: %s", self._folder, len(records), error)
            return list(records)

    def _remove(self, names: Sequence[bytes]) -> None:
        self._space.committed((), self._table.remove(names))

    def _remove_if(self, records: Mapping[bytes, bytes]) -> list[bytes]:
        gone, removed = self._table.remove_if(records)
        self._space.committed((), removed)
        return gone


def _pass() -> None:
    """Nothing more is to be done when it returns: its own work has seen to all that follows."""
