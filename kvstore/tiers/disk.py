"""The disk tier in its simplest correct form: bytes and index entry of a block in one LMDB transaction.

It holds whole, immutable blocks under their names (disk_format.py). It decides nothing: which blocks
come and go is the core's affair. What it promises: a batch is stored whole or not at all, and durably;
what `read` gives is what was written under that name, or nothing; the file never grows beyond the cap;
and where the disk is full or fails, writing stops (*degraded*) and is tried again, while reading goes on.

One thread writes and deletes, one reads; both may run at once.

Not covered: LMDB reads through a map, so a device that fails under a page that is being read ends the
process (SIGBUS). That goes with the bytes' own segment files.
"""

import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvstore.core.errors import ConfigInvalid, check
from kvstore.core.types import StoredKey
from kvstore.tiers.disk_folder import claim_folder, disk_invalid, warn_of_space
from kvstore.tiers.disk_format import block_name, new_entry, stored_bytes
from kvstore.tiers.disk_health import DiskCounts, WriteHealth
from kvstore.tiers.disk_index import FoundBlocks
from kvstore.tiers.disk_order import keys_in_order
from kvstore.tiers.disk_table import BlockTable, DiskFault, Held, NewBlock
from kvstore.tiers.names import NameKind, Names

__all__ = ["CAP_BYTES_MIN", "DiskCounts", "DiskTier", "DiskWriteFailed"]

log = logging.getLogger(__name__)

CAP_BYTES_MIN = 4 << 20
# Kept free below the cap: deletes need pages of their own, and the pages of a deleted block can be
# used again only two transactions later.
HEADROOM_BYTES_MIN = 1 << 20
HEADROOM_DIVISOR = 8
# Blocks deleted in one transaction at the start, where there may be very many.
DELETE_MAX = 1024


class DiskWriteFailed(Exception):
    """Nothing of the batch was stored."""


class DiskTier:
    """`names` gives the small ids that stand in the keys."""

    def __init__(self, folder: Path, claim: int, cap_bytes: int, clock: Callable[[], float]) -> None:
        """By way of `open`, which holds the folder's lock."""
        self.folder = folder
        self.counts = DiskCounts()
        self._claim = claim
        # LMDB can't grow a file beyond its map: this makes the cap a hard one, on bytes on disk.
        self._table = BlockTable(folder, cap_bytes // mmap.PAGESIZE * mmap.PAGESIZE)
        self._room_bytes = cap_bytes - max(cap_bytes // HEADROOM_DIVISOR, HEADROOM_BYTES_MIN)
        self._health = WriteHealth(clock)
        # Held around each write transaction and what is kept in step with it.
        self._writing = threading.Lock()
        # Names of blocks whose deletion failed: tried again with the next one.
        self._owed: dict[bytes, None] = {}
        try:
            rows = self._table.read_names()
            self.names = Names(rows)
            self._names_saved = len(rows)
            self._held = Held()
            # As it was found; kept for the first that asks what is stored, so that it is read once.
            self._index: FoundBlocks | None = self._read_index()
            self._take_stock(self._index)
            if self.held_bytes > self._room_bytes:
                # The cap was larger once. What is too much can be deleted only where there is room for that.
                self._table.widen(HEADROOM_BYTES_MIN)
            warn_of_space(folder, cap_bytes)
        except BaseException:
            self._table.close()
            raise

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], cap_bytes: int, *, clock: Callable[[], float] = time.monotonic
    ) -> "DiskTier":
        if cap_bytes < CAP_BYTES_MIN:
            remedy = f"at least {CAP_BYTES_MIN}, or no disk tier"
            raise ConfigInvalid("too small", field="disk cap in bytes", value=cap_bytes, remedy=remedy)
        folder = Path(os.path.realpath(path))
        claim = claim_folder(folder)
        try:
            return cls(folder, claim, cap_bytes, clock)
        except (*DiskFault, ValueError) as error:
            os.close(claim)
            remedy = "delete the folder: its blocks will be computed again"
            raise disk_invalid(folder, f"damaged: {error}", remedy) from error
        except BaseException:
            os.close(claim)
            raise

    @property
    def degraded(self) -> bool:
        """Writing has failed; it is tried again later and later until it succeeds."""
        return self._health.degraded

    @property
    def degraded_reason(self) -> str:
        return self._health.reason

    @property
    def held_bytes(self) -> int:
        """What the blocks of all layouts take of the cap."""
        return self._held.total()

    def capacity_blocks(self, block_bytes_all_ranks: int) -> int:
        """How many blocks of this size may be here at once, beside what other layouts hold."""
        own = self.names.namespaces_of_size(block_bytes_all_ranks)
        others = sum(held for namespace, held in self._held.items() if namespace not in own)
        if others:
            log.warning("%s: other layouts hold %d of %d bytes", self.folder, others, self._room_bytes)
        return max(0, self._room_bytes - others) // stored_bytes(
            block_bytes_all_ranks, self._table.page_bytes
        )

    def stored(self, block_bytes_all_ranks: int) -> list[StoredKey]:
        """The blocks of this size: each after its parent, the least recent chains first.

        Deletes what can't be reached because a block that it hangs on is missing. None where the
        index can't be read: then nothing more is written, for a damaged tree isn't worth adding to.
        """
        try:
            index = self._read_index() if self._index is None else self._index
        except DiskFault as error:
            self.counts.read_errors += 1
            self._health.failed_for_good(f"damaged, delete the folder: {type(error).__name__}: {error}")
            log.error("%s: nothing is written any more: %s", self.folder, self.degraded_reason)
            return []
        self._index = None
        is_own = np.isin(index.namespace, list(self.names.namespaces_of_size(block_bytes_all_ranks)))
        keys, orphans = keys_in_order(index if is_own.all() else index.take(is_own))
        self.counts.orphans += len(orphans)
        self._delete_many(orphans)
        return keys

    def write(self, keys: Sequence[StoredKey], payloads: Sequence[Sequence[memoryview]]) -> None:
        """Stores blocks, each given as one part a rank: all of them, durably, or none."""
        check(len(keys) == len(payloads), f"{len(keys)} keys for {len(payloads)} blocks")
        self._index = None
        batch: dict[bytes, NewBlock] = {}
        for key, parts in zip(keys, payloads, strict=True):
            name = block_name(key)
            batch[name] = new_entry(name, key, parts), parts
        with self._writing:
            self._admit(batch)
            rows = self.names.rows_after(self._names_saved)
            try:
                self._held.update(self._table.put(rows, batch))
            except DiskFault as error:
                raise self._failed(f"{type(error).__name__}: {error}") from error
            self._names_saved += len(rows)
            for name in batch:
                self._owed.pop(name, None)
            self._health.succeeded()

    def read(self, key: StoredKey, out: Sequence[NDArray[np.uint8]]) -> bool:
        """Fills `out`, one array a rank. False where the block isn't there, whole and right.

        A block that is wrong is deleted, so that it can be stored again.
        """
        name = block_name(key)
        try:
            record, fault = self._table.load(name, out)
            if not fault:
                return True
            self.counts.bad_entries += 1
            log.warning("%s: block %s is dropped: %s", self.folder, name.hex(), fault)
            with self._writing:
                self._held.update(self._table.remove_if(name, record))
        except DiskFault as error:
            self.counts.read_errors += 1
            log.warning("%s: block %s can't be read or dropped: %s", self.folder, name.hex(), error)
        return False

    def delete(self, keys: Sequence[StoredKey]) -> None:
        """Forgets blocks; those that aren't there are passed over. What fails is tried again later."""
        with self._writing:
            self._index = None
            self._delete([block_name(key) for key in keys])

    def close(self) -> None:
        """Only when no thread is in a call: LMDB's memory goes with its environment."""
        self._table.close()
        if self._claim >= 0:
            os.close(self._claim)
            self._claim = -1

    def _take_stock(self, index: FoundBlocks) -> None:
        for namespace in np.unique(index.namespace).tolist():
            sizes, counts = np.unique(index.size[index.namespace == namespace], return_counts=True)
            for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
                self._held[namespace] += count * stored_bytes(size, self._table.page_bytes)
        # Where their rows are lost, nobody else may come to be called so.
        self.names.reserve(NameKind.NAMESPACE, int(index.namespace.max(initial=0)))
        self.names.reserve(NameKind.TENANT, int(index.tenant.max(initial=0)))
        self.names.reserve(NameKind.WRITER, int(index.writer.max(initial=0)))

    def _admit(self, batch: dict[bytes, NewBlock]) -> None:
        """The core keeps to the capacity it was told. Where it errs, or deletes have failed, this holds."""
        if self._health.must_wait:
            raise DiskWriteFailed(f"not tried again yet: {self._health.reason}")
        if self._owed:
            self._delete([])
        size = sum(stored_bytes(entry.size, self._table.page_bytes) for entry, _ in batch.values())
        if self.held_bytes + size > self._room_bytes:
            raise self._failed(
                f"full: {self.held_bytes} of {self._room_bytes} bytes held, {size} more to write"
            )

    def _failed(self, reason: str) -> DiskWriteFailed:
        self.counts.write_errors += 1
        self._health.failed(reason)
        log.warning("%s: writing failed: %s", self.folder, reason)
        return DiskWriteFailed(reason)

    def _delete(self, names: Sequence[bytes]) -> None:
        wanted = dict.fromkeys([*self._owed, *names])
        try:
            self._held.update(self._table.remove(wanted))
        except DiskFault as error:
            self._owed = wanted
            self.counts.delete_errors += 1
            self._health.failed(f"{type(error).__name__}: {error}")
            log.warning("%s: %d blocks not deleted yet: %s", self.folder, len(wanted), error)
        else:
            self._owed = {}
            self._health.retry_now()

    def _delete_many(self, names: Sequence[bytes]) -> None:
        for start in range(0, len(names), DELETE_MAX):
            with self._writing:
                self._delete(names[start : start + DELETE_MAX])

    def _read_index(self) -> FoundBlocks:
        found, bad = self._table.read_index()
        self.counts.bad_entries += len(bad)
        for name in bad:
            log.warning("%s: block %s is dropped: its entry can't be read", self.folder, name.hex())
        self._delete_many(bad)
        return found
