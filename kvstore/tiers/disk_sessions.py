"""The sessions that the disk keeps: which keys a chat has left, so that it can be found after a restart.

They are bounded by the keys that they name, two for each slot: those that were kept least recently go first.
What can't be written now is written with the next that can.
"""

import logging
import threading
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from kvstore.core.types import SessionName, StoredSession
from kvstore.tiers.disk_deleting import commit
from kvstore.tiers.disk_health import WriteHealth
from kvstore.tiers.disk_index import FoundBlocks
from kvstore.tiers.disk_io import IoThreads
from kvstore.tiers.disk_records import pack_session, session_key, session_key_count, unpack_session
from kvstore.tiers.disk_table import BlockTable, DiskFault

__all__ = ["Sessions"]

log = logging.getLogger(__name__)

KEYS_PER_SLOT = 2
# What a session takes room for beside its keys, in keys.
HEAD_KEYS = 4
# Changes that wait to be written; of more the oldest are given up.
PENDING_MAX = 4096


class Sessions:
    """For any thread."""

    def __init__(
        self,
        folder: Path,
        table: BlockTable,
        threads: IoThreads,
        health: WriteHealth,
        slot_count: int,
        blocks: FoundBlocks,
    ) -> None:
        """`blocks`: those that are there. Sessions of which nothing is left are dropped, and those that
        can't be read. Before any other thread uses the table."""
        self._folder = folder
        self._table = table
        self._threads = threads
        self._health = health
        self._keys_max = KEYS_PER_SLOT * slot_count
        self._lock = threading.Lock()
        # What is in the table, in keys, the least recently kept first; and what isn't there yet.
        self._sizes: dict[bytes, int] = {}
        self._total = 0
        # An empty record: to be forgotten.
        self._pending: dict[bytes, bytes] = {}
        self._found: list[StoredSession] = []
        self._load(blocks)

    @property
    def found(self) -> list[StoredSession]:
        """As they were at the start, the least recently kept first."""
        return self._found

    def keep(self, sessions: Iterable[StoredSession]) -> None:
        """In place of what was kept under their names."""
        now = time.time_ns()
        self._change({session_key(session): pack_session(session, now) for session in sessions})

    def forget(self, names: Iterable[SessionName]) -> None:
        self._change({session_key(name): b"" for name in names})

    @property
    def owes(self) -> bool:
        """Whether any is still to be forgotten."""
        with self._lock:
            return not all(self._pending.values())

    def flush(self) -> None:
        """Writes what couldn't be written before, if anything."""
        if self._pending:
            self._change({})

    def _load(self, blocks: FoundBlocks) -> None:
        records = self._table.read_sessions()
        if not records:
            return
        there = set(blocks.names())
        kept: list[tuple[int, bytes, StoredSession]] = []
        for name, record in records.items():
            try:
                session, time_ns = unpack_session(name, record)
            except ValueError as error:
                log.warning("%s: session %s is dropped: %s", self._folder, name.hex(), error)
                continue
            prefix = name[:8]
            if any(prefix + key in there for key in session.keys):
                kept.append((time_ns, name, session))
        kept.sort(key=lambda each: each[:2])
        for _, name, session in kept:
            self._note(name, records[name])
            self._found.append(session)
        gone = set(records) - set(self._sizes)
        over = self._over()
        self._found = self._found[len(over) :]
        try:
            self._table.put_sessions({}, [*gone, *over])
        except DiskFault as error:
            log.warning("%s: %d sessions not deleted yet: %s", self._folder, len(gone) + len(over), error)
        for name in over:
            self._note(name, b"")

    def _change(self, records: dict[bytes, bytes]) -> None:
        with self._lock:
            for name, record in records.items():
                self._pending.pop(name, None)
                self._pending[name] = record if self._weight(record) <= self._keys_max else b""
            while len(self._pending) > PENDING_MAX:
                # Not what is to be forgotten, as long as there is anything else.
                to_keep = (name for name, record in self._pending.items() if record)
                del self._pending[next(to_keep, next(iter(self._pending)))]
            if self._health.must_wait:
                return
            pending = self._pending
            for name, record in pending.items():
                self._note(name, record)
            over = self._over()
            kept = {name: record for name, record in pending.items() if record and name not in over}
            gone = [*over, *(name for name, record in pending.items() if not record)]
            try:
                commit(self._threads, lambda: self._table.put_sessions(kept, gone))
            except DiskFault as error:
                # Counted as written: the bound holds all the more.
                self._health.failed(f"{type(error).__name__}: {error}")
                log.warning("%s: %d sessions not written yet: %s", self._folder, len(pending), error)
                return
            self._pending = {}
            for name in over:
                self._note(name, b"")

    def _over(self) -> list[bytes]:
        """The least recently kept ones that are too many."""
        total, count = self._total, 0
        for size in self._sizes.values():
            if total <= self._keys_max:
                break
            total -= size
            count += 1
        return list(islice(self._sizes, count))

    def _note(self, name: bytes, record: bytes) -> None:
        self._total -= self._sizes.pop(name, 0)
        if record:
            self._sizes[name] = self._weight(record)
            self._total += self._sizes[name]

    @staticmethod
    def _weight(record: bytes) -> int:
        return HEAD_KEYS + session_key_count(record)
