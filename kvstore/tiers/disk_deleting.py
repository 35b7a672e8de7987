"""Blocks taken out of the index, and transactions of the index in general: with a deadline, and made up for
where they fail."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from kvstore.tiers.disk_health import DiskCounts, WriteHealth
from kvstore.tiers.disk_io import IoKind, IoLate, IoNotBegun, IoThreads
from kvstore.tiers.disk_space import Space
from kvstore.tiers.disk_table import BlockTable, DiskFault

__all__ = ["Deleter", "commit"]

log = logging.getLogger(__name__)

T = TypeVar("T")
# Blocks deleted in one transaction, where there may be very many.
DELETE_MAX = 1024
# Parts of what is owed that are tried again in one call.
OWED_PARTS = 16


def commit(threads: IoThreads, work: Callable[[], T], returned: Callable[[], None] | None = None) -> T:
    """Does `work`, which holds one transaction and what follows from it, in the index's thread.

    A DiskFault where it failed or is late. If it is late, `returned` is called when it has ended.
    """
    return threads.start(IoKind.INDEX, work).wait(returned)


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
        # In parts that failed together, each of them halved.
        self._owed: deque[dict[bytes, None]] = deque()
        # Parts that are just being tried again: what is written meanwhile is taken out of these too.
        self._trying: list[dict[bytes, None]] = []
        self._lock = threading.Lock()

    def delete(self, names: Sequence[bytes]) -> None:
        """These, and some of what is owed. What fails is owed from then on."""
        parts = [
            dict.fromkeys(names[start : start + DELETE_MAX]) for start in range(0, len(names), DELETE_MAX)
        ]
        with self._lock:
            parts += [self._owed.popleft() for _ in range(min(len(self._owed), OWED_PARTS))]
            self._trying += parts
        failed = 0
        for place, part in enumerate(parts):
            try:
                commit(self._threads, partial(self._remove, part))
                self._tried(part)
            except DiskFault as error:
                failed += 1
                self._owe_again(part, halved=True)
                fault = f"{type(error).__name__}: {error}"
                log.warning("%s: %d blocks not deleted yet: %s", self._folder, len(part), error)
                if isinstance(error, (IoLate, IoNotBegun)):
                    # The others would wait as long.
                    for left in parts[place + 1 :]:
                        self._owe_again(left, halved=False)
                    break
        self._counts.delete_errors += failed > 0
        if failed and failed == len(parts):
            self._health.failed(fault)
        else:
            self._health.retry_now()

    @property
    def owes(self) -> bool:
        with self._lock:
            return bool(self._owed or self._trying)

    def pay(self) -> None:
        """Deletes what is owed, if anything; all of it, where nothing fails, after a few calls."""
        if self._owed:
            self.delete([])

    def owe(self, names: Iterable[bytes]) -> None:
        if owed := dict.fromkeys(names):
            with self._lock:
                self._owed.append(owed)

    def _tried(self, part: dict[bytes, None]) -> None:
        with self._lock:
            self._trying = [each for each in self._trying if each is not part]

    def _owe_again(self, part: dict[bytes, None], *, halved: bool) -> None:
        """Halved, so that one which can't be deleted is alone in the end, and keeps no other from it."""
        with self._lock:
            self._trying = [each for each in self._trying if each is not part]
            names, middle = list(part), len(part) // 2 if halved else 0
            self._owed += [dict.fromkeys(some) for some in (names[:middle], names[middle:]) if some]

    def forgive(self, names: Iterable[bytes]) -> None:
        """They have been written again. In the thread of the index: no delete that was begun before comes
        after it."""
        with self._lock:
            for part in (*self._owed, *self._trying):
                for name in names:
                    part.pop(name, None)
            self._owed = deque(part for part in self._owed if part)

    def drop(self, records: Mapping[bytes, bytes]) -> list[bytes]:
        """Deletes bad blocks; returns their names but for those of which the record is another by now."""
        try:
            return commit(self._threads, lambda: self._remove_if(records))
        except DiskFault as error:
            self.owe(records)
            self._counts.delete_errors += 1
            log.warning("%s: %d bad blocks not deleted yet: %s", self._folder, len(records), error)
            return list(records)

    def _remove(self, part: Mapping[bytes, None]) -> None:
        """What has been written again by now, by another thread, is in it no more."""
        with self._lock:
            names = list(part)
        self._space.committed((), self._table.remove(names))

    def _remove_if(self, records: Mapping[bytes, bytes]) -> list[bytes]:
        gone, removed = self._table.remove_if(records)
        self._space.committed((), removed)
        return gone
