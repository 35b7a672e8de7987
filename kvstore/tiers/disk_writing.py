"""How a batch is written: bytes into slots, one sync for each segment, then the entries in one transaction.

So an entry that is there has its bytes, and a batch is there whole or not at all. The checksums of the next
piece are reckoned while the device writes the last. Bytes of several batches go out at once; sync and
transaction each does in its turn (disk_tickets.py).
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from kvstore.core.types import StoredKey
from kvstore.tiers.disk_deleting import Deleter, commit
from kvstore.tiers.disk_format import BlockEntry, checksum_of
from kvstore.tiers.disk_io import WRITE_BYTES_MAX, Io, IoKind, IoLate, IoNotBegun, IoThreads
from kvstore.tiers.disk_pieces import PIECE_BYTES, Part, Piece, make_pieces
from kvstore.tiers.disk_space import Space
from kvstore.tiers.disk_table import BlockTable, DiskFault
from kvstore.tiers.disk_tickets import Ticket
from kvstore.tiers.names import Names

__all__ = ["Batch", "BlockWriter", "Pace"]

# Blocks by name: each one's key and its parts, one a rank.
Batch = Mapping[bytes, tuple[StoredKey, Sequence[Part]]]
# Called before an I/O of so many bytes; it returns when that may begin.
Pace = Callable[[int], None]

# Pieces that are being written or wait for it, while the next one is made ready.
PIECES_AHEAD = 4
# Half of what may be in service at once.
WRITE_PIECE_BYTES = WRITE_BYTES_MAX // 2


class BlockWriter:
    """For any thread. While one batch is synced and committed, the bytes of others keep the device busy."""

    def __init__(
        self,
        table: BlockTable,
        threads: IoThreads,
        space: Space,
        deleter: Deleter,
        names: Names,
        *,
        names_saved: int,
        is_laid_out: bool,
    ) -> None:
        """`names_saved`, `is_laid_out`: what is in the index of the names and the geometry."""
        self._table = table
        self._threads = threads
        self._space = space
        self._deleter = deleter
        self._names = names
        self.names_saved = names_saved
        self._is_laid_out = is_laid_out
        self._taking = threading.Lock()

    def save_anew(self) -> None:
        """All names and the geometry go with the next write: what is in the index isn't known any more."""
        self.names_saved = 0
        self._is_laid_out = False

    def write(self, batch: Batch, block_bytes: int, pace: Pace, ticket: Ticket) -> None:
        """Durable when it returns. DiskFault where nothing of it was stored, or EarlierFailed."""
        slots = self._take_slots(len(batch))
        late: set[int] = set()
        try:
            entries = self._write_bytes(batch, slots, block_bytes, pace, late)
            ticket.wait_turn()
            self._sync({entry.segment for entry in entries.values()})
        except BaseException:
            self._space.give(slot for slot in slots if slot not in late)
            raise
        self._commit(entries, slots)

    def _sync(self, segments: Iterable[int]) -> None:
        """All at once, and for the end of all."""
        syncs: list[Io[None]] = []
        for segment in sorted(segments):
            fd, _ = self._space.segments.place(segment * self._space.geometry.segment_slots)
            syncs.append(self._threads.start(IoKind.SYNC, partial(self._space.files.sync, fd)))
        faults: list[Exception] = []
        for sync in syncs:
            try:
                sync.wait()
            except DiskFault as fault:
                faults.append(fault)
        if faults:
            raise faults[0]

    def _take_slots(self, count: int) -> list[int]:
        """OSError where the tier is full. The core keeps to the capacity, but deletes may have failed."""
        run = max(1, PIECE_BYTES // self._space.geometry.slot_bytes)
        slots: list[int] = []
        with self._taking:
            if count > self._space.free_count:
                raise OSError(f"full: {self._space.free_count} slots are free, {count} more to write")
            try:
                while len(slots) < count:
                    taken = self._space.take(count - len(slots), run)
                    if not taken:
                        self._threads.start(IoKind.WRITE, self._space.grow, WRITE_BYTES_MAX).wait()
                    slots += taken
            except BaseException:
                self._space.give(slots)
                raise
        return sorted(slots)

    def _write_bytes(
        self, batch: Batch, slots: Sequence[int], block_bytes: int, pace: Pace, late: set[int]
    ) -> dict[bytes, BlockEntry]:
        """`late`: slots of writes that are still under way when this raises."""
        geometry = self._space.geometry
        blocks = [parts for _, parts in batch.values()]
        named = list(batch.items())
        entries: dict[bytes, BlockEntry] = {}
        ahead: deque[tuple[Piece, Io[None]]] = deque()
        try:
            pieces = make_pieces(
                slots, blocks, geometry.stride_bytes, geometry.segment_slots, WRITE_PIECE_BYTES
            )
            for piece in pieces:
                piece.fill_buffer()
                for position in piece.positions:
                    name, (key, parts) = named[position]
                    shares = [part[:block_bytes].data for part in parts]
                    entries[name] = _make_entry(name, key, shares, slots[position], geometry.segment_slots)
                pace(piece.size_bytes)
                call = partial(self._write_piece, piece)
                ahead.append((piece, self._threads.start(IoKind.WRITE, call, piece.size_bytes)))
                if len(ahead) > PIECES_AHEAD:
                    self._wait(*ahead.popleft(), late)
        finally:
            faults = [fault for piece, io in ahead if (fault := self._try_wait(piece, io, late))]
        if faults:
            raise faults[0]
        return {name: entries[name] for name in batch}

    def _write_piece(self, piece: Piece) -> None:
        fd, offset = self._space.segments.place(piece.slot)
        self._space.files.write(fd, piece.parts, offset)

    def _wait(self, piece: Piece, io: Io[None], late: set[int]) -> None:
        slots = range(piece.slot, piece.slot + len(piece.positions))
        try:
            io.wait(lambda: self._space.give(slots))
        except IoLate:
            late.update(slots)
            raise

    def _try_wait(self, piece: Piece, io: Io[None], late: set[int]) -> Exception | None:
        try:
            self._wait(piece, io, late)
        except DiskFault as fault:
            return fault
        return None

    def _commit(self, entries: Mapping[bytes, BlockEntry], slots: Sequence[int]) -> None:
        try:
            commit(
                self._threads,
                lambda: self._put(entries, slots),
                # Nobody knows of them: the caller was told that they aren't there.
                lambda: self._deleter.owe(entries),
            )
        except IoNotBegun:
            self._space.give(slots)
            raise

    def _put(self, entries: Mapping[bytes, BlockEntry], slots: Sequence[int]) -> None:
        """In the thread of the index, so what was saved of the names and the geometry is known."""
        rows = self._names.rows_after(self.names_saved)
        geometry = None if self._is_laid_out else self._space.geometry
        try:
            removed = self._table.put(rows, geometry, entries)
        except BaseException:
            self._space.doubt(slots)
            raise
        self.names_saved += len(rows)
        self._is_laid_out = True
        self._deleter.forgive(entries)
        self._space.committed(entries, removed)


def _make_entry(
    name: bytes, key: StoredKey, shares: Sequence[memoryview], slot: int, segment_slots: int
) -> BlockEntry:
    return BlockEntry(
        segment=slot // segment_slots,
        slot=slot % segment_slots,
        size=sum(share.nbytes for share in shares),
        parent=key.parent,
        checksum=checksum_of(name, shares),
        writer=key.writer,
        created_ns=time.time_ns(),
        owner=key.owner,
    )
