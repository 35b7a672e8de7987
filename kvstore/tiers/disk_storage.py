"""What there is of the tier once the size of its slots is known: room, who reads, who writes, who deletes."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from kvstore.core.stored import StoredBlocks
from kvstore.core.types import StoredKey
from kvstore.tiers.disk_cap import blocks_max, index_bytes, slot_count
from kvstore.tiers.disk_deleting import Deleter, commit
from kvstore.tiers.disk_format import Geometry, key_of_name, segment_name
from kvstore.tiers.disk_health import DiskCounts, WriteHealth
from kvstore.tiers.disk_io import IoKind, IoThreads
from kvstore.tiers.disk_order import keys_in_order
from kvstore.tiers.disk_pieces import Part
from kvstore.tiers.disk_reading import BlockReader, ReadFault, ReadOutcome, Verdict
from kvstore.tiers.disk_sessions import Sessions
from kvstore.tiers.disk_shrink import cull, move_below
from kvstore.tiers.disk_space import Space
from kvstore.tiers.disk_start import NO_SLOTS, Stock, take_stock
from kvstore.tiers.disk_table import BlockTable, DiskFault
from kvstore.tiers.disk_tickets import EarlierFailed, Ticket
from kvstore.tiers.disk_writing import Batch, BlockWriter, Pace
from kvstore.tiers.files import Files
from kvstore.tiers.names import NameKind, Names
from kvstore.tiers.segments import segments_in

__all__ = ["DiskWriteFailed", "Storage", "at_once", "remove_segments"]

log = logging.getLogger(__name__)


# In one transaction.
USES_MAX = 1024
# An index that stays longer than it should leaves room for fewer blocks, with which it is shorter.
FIT_TIMES = 3

OUTCOMES = {
    ReadFault.NONE: ReadOutcome.GOOD,
    ReadFault.MISSING: ReadOutcome.BAD,
    ReadFault.WRONG: ReadOutcome.BAD,
    ReadFault.FAILED: ReadOutcome.BAD,
    ReadFault.LATE: ReadOutcome.LATE,
}


class DiskWriteFailed(Exception):
    """Nothing of the batch was stored."""


class Storage:
    """`stock`: what was found at the start, for the first that asks; None from then on."""

    def __init__(
        self,
        folder: Path,
        table: BlockTable,
        files: Files,
        threads: IoThreads,
        names: Names,
        geometry: Geometry,
        cap_bytes: int,
        counts: DiskCounts,
        health: WriteHealth,
        *,
        names_saved: int,
        is_new: bool,
    ) -> None:
        """Before any other thread uses the table. DiskFault where the folder can't be read or made to fit."""
        self.folder = folder
        self.geometry = geometry
        self._table = table
        self._counts = counts
        self._health = health
        count = slot_count(cap_bytes, geometry.slot_bytes, geometry.segment_slots)
        segments = segments_in(folder)
        # What is found wrong is deleted, and so is what the cap leaves no room for.
        table.widen_map()
        stock = take_stock(folder, table, geometry, segments, counts)
        stock, left, count = _fit(folder, table, geometry, cap_bytes, stock, count)
        # Blocks that nobody is told of, but their entries are there, and so their slots are taken.
        left_slots = np.concatenate([NO_SLOTS, *(each.slots for each in left)])
        self.space = Space(folder, files, geometry, count)
        try:
            self.space.open(segments)
            stock = move_below(folder, table, self.space, stock, left_slots, counts)
            self.space.load(
                np.concatenate([stock.slots, left_slots]),
                np.concatenate([each.blocks.namespace for each in (stock, *left)]),
                stock.barred,
            )
            self.sessions = Sessions(folder, table, threads, health, count, stock.blocks)
        except BaseException:
            self.space.close()
            raise
        # Where their rows are lost, nobody else may come to be called so.
        names.reserve(NameKind.NAMESPACE, int(stock.blocks.namespace.max(initial=0)))
        names.reserve(NameKind.TENANT, int(stock.blocks.tenant.max(initial=0)))
        names.reserve(NameKind.WRITER, int(stock.blocks.writer.max(initial=0)))
        self.stock: Stock | None = stock
        self.deleter = Deleter(folder, table, threads, self.space, counts, health)
        for each in left:
            self.deleter.owe(each.blocks.names())
        self.writer = BlockWriter(
            table,
            threads,
            self.space,
            self.deleter,
            names,
            names_saved=names_saved,
            is_laid_out=not is_new,
        )
        self.reader = BlockReader(table, threads, self.space)
        self._threads = threads

    def found(self, namespaces: Collection[int]) -> StoredBlocks:
        """Blocks of these, as `DiskTier.found`. DiskFault where the index can't be read."""
        stock = self.stock or take_stock(
            self.folder, self._table, self.geometry, segments_in(self.folder), self._counts
        )
        self.stock = None
        is_own = np.isin(stock.blocks.namespace, list(namespaces))
        stock = stock if is_own.all() else stock.take(is_own)
        keys, orphans = keys_in_order(stock.blocks, stock.recent_ns)
        self._counts.orphans += len(orphans)
        self.deleter.delete(orphans)
        return keys

    def write(self, batch: Batch, block_bytes: int, pace: Pace, ticket: Ticket) -> None:
        """All of it, durably, or DiskWriteFailed."""
        self.stock = None
        if self._health.must_wait:
            raise DiskWriteFailed(f"not tried again yet: {self._health.reason}")
        self.deleter.pay()
        try:
            self.writer.write(batch, block_bytes, pace, ticket)
        except EarlierFailed as error:
            # What was wrong is counted there.
            raise DiskWriteFailed(str(error)) from error
        except DiskFault as error:
            self._counts.write_errors += 1
            reason = str(error) if type(error) is OSError else f"{type(error).__name__}: {error}"
            self._health.failed(reason)
            log.warning("%s: writing failed: %s", self.folder, reason)
            raise DiskWriteFailed(reason) from error
        self._health.succeeded()
        self.sessions.flush()

    def settle(self) -> bool:
        try:
            # Behind every transaction before it, late ones too; what those have left is owed by then.
            commit(self._threads, lambda: None)
        except DiskFault:
            return False
        self.deleter.pay()
        self.sessions.flush()
        return not (self.deleter.owes or self.sessions.owes)

    def note_uses(self, names: Sequence[bytes]) -> None:
        """A use that can't be noted is one that never was."""
        if self._health.must_wait:
            return
        now = time.time_ns()
        try:
            for start in range(0, len(names), USES_MAX):
                part = names[start : start + USES_MAX]
                commit(self._threads, partial(self._table.note_uses, part, now))
        except DiskFault as error:
            self._health.failed(f"{type(error).__name__}: {error}")
            log.warning("%s: uses of blocks not noted: %s", self.folder, error)

    def read(
        self,
        names: Sequence[bytes],
        outs: Sequence[Sequence[Part]],
        block_bytes: int,
        pace: Pace,
        returned: Callable[[int], None],
    ) -> list[ReadOutcome]:
        verdicts = self.reader.read(names, outs, block_bytes, pace, returned)
        self._settle(dict(zip(names, verdicts, strict=True)))
        return [OUTCOMES[verdict.fault] for verdict in verdicts]

    def verify_after(self, name: bytes, count: int, pace: Pace) -> tuple[bytes, list[StoredKey]]:
        """Looks at so many blocks behind this name, as if they were read. Returns the name of the last of
        them, empty at the end, and the blocks that were wrong and so are gone."""
        names = self._threads.start(IoKind.READ, partial(self._table.names_after, name, count)).wait()
        wrong = self._settle(dict(zip(names, self.reader.verify(names, pace), strict=True)))
        return names[-1] if len(names) == count else b"", wrong

    def _settle(self, verdicts: Mapping[bytes, Verdict]) -> list[StoredKey]:
        """Bad blocks are dropped, in one transaction; what went wrong is counted, and told with the block."""
        wrong = {name: each for name, each in verdicts.items() if each.fault is ReadFault.WRONG}
        for name, verdict in verdicts.items():
            if verdict.fault in (ReadFault.FAILED, ReadFault.LATE):
                self._counts.read_errors += 1
                self._counts.late_reads += verdict.fault is ReadFault.LATE
                log.warning("%s: block %s can't be read: %s", self.folder, name.hex(), verdict.why)
        gone = self.deleter.drop({name: each.record for name, each in wrong.items()}) if wrong else []
        if gone:
            self.stock = None
        for name in gone:
            self._counts.bad_entries += 1
            log.warning("%s: block %s is dropped: %s", self.folder, name.hex(), wrong[name].why)
        return [key_of_name(name) for name in gone]


def _fit(
    folder: Path, table: BlockTable, geometry: Geometry, cap_bytes: int, stock: Stock, count: int
) -> tuple[Stock, list[Stock], int]:
    """As many blocks as the cap leaves room for, those that should have gone and couldn't, and that count."""
    left: list[Stock] = []
    for _ in range(FIT_TIMES):
        table.widen_map()
        stock, more = cull(folder, table, stock, blocks_max(count))
        left.append(more)
        count = min(count, _fit_index(folder, table, geometry, cap_bytes, count))
        if len(stock) <= blocks_max(count):
            break
    return stock, left, count


def _fit_index(folder: Path, table: BlockTable, geometry: Geometry, cap_bytes: int, count: int) -> int:
    """How many slots there may be beside the index, made as short as it can be where it is too long."""
    if table.file_bytes > index_bytes(count):
        try:
            table.compact()
        except (*DiskFault, OSError) as error:
            log.warning("%s: the index stays at %d bytes: %s", folder, table.file_bytes, error)
        count = slot_count(cap_bytes, geometry.slot_bytes, geometry.segment_slots, table.file_bytes)
    table.set_map(index_bytes(count))
    return count


def remove_segments(folder: Path, files: Files) -> None:
    """Of a folder without blocks: a start that died half-way may leave them. One that can't be removed counts
    towards the cap all the same, as it is made no second time."""
    for segment in segments_in(folder):
        try:
            files.remove(folder / segment_name(segment))
        except OSError as error:
            log.warning("%s: can't be removed: %s", folder / segment_name(segment), error)


def at_once(size_bytes: int) -> None:
    """No limit on the rate."""
