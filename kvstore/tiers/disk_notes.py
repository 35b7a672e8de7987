"""Notes that the service keeps beside its blocks, like what the links can do: small, by name, checksummed.

All of them are advice. One that can't be read is as good as none, and one that can't be kept is let go.
"""

import logging
from pathlib import Path

from kvstore.core.errors import check
from kvstore.tiers.disk_deleting import commit
from kvstore.tiers.disk_format import SUM_BYTES, record_sum
from kvstore.tiers.disk_io import IoThreads
from kvstore.tiers.disk_table import BlockTable, DiskFault

__all__ = ["NOTE_BYTES_MAX", "DiskNotes"]

log = logging.getLogger(__name__)

NOTE_BYTES_MAX = 64 << 10
TABLE = "note"


class DiskNotes:
    """For any thread; waits no longer than any I/O."""

    def __init__(self, folder: Path, table: BlockTable, threads: IoThreads) -> None:
        self._folder = folder
        self._table = table
        self._threads = threads

    def put(self, name: str, data: bytes) -> None:
        """In the place of the one before."""
        check(len(data) <= NOTE_BYTES_MAX, f"a note of {len(data)} bytes")
        record = record_sum(TABLE, name.encode(), data) + data
        try:
            commit(self._threads, lambda: self._table.put_note(_key(name), record))
        except DiskFault as error:
            log.warning("%s: note %s isn't kept: %s", self._folder, name, error)

    def get(self, name: str) -> bytes:
        """Empty where there is none that can be read."""
        try:
            record = commit(self._threads, lambda: self._table.note(_key(name)))
        except DiskFault as error:
            log.warning("%s: note %s can't be read: %s", self._folder, name, error)
            return b""
        data = record[SUM_BYTES:]
        if record and record[:SUM_BYTES] != record_sum(TABLE, name.encode(), data):
            log.warning("%s: note %s is passed over: wrong checksum", self._folder, name)
            return b""
        return data


def _key(name: str) -> bytes:
    return f"note {name}".encode()
