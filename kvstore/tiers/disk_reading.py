"""How blocks are read: looked up, read by several threads as pieces, and each verified before it counts.

The checksum is that of the frame's own bytes: what it vouches for is what lies there.
"""

import mmap
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial

import numpy as np
from msgspec import Struct

from kvstore.core.errors import check
from kvstore.tiers.disk_format import BlockEntry, checksum_of
from kvstore.tiers.disk_io import Io, IoKind, IoLate, IoNotBegun, IoThreads
from kvstore.tiers.disk_pieces import Part, Piece, make_pieces
from kvstore.tiers.disk_space import Space
from kvstore.tiers.disk_table import BlockTable, DiskFault
from kvstore.tiers.disk_writing import Pace

__all__ = ["BlockReader", "Found", "ReadFault", "ReadOutcome", "Verdict", "ignore"]


class ReadOutcome(Enum):
    """GOOD: the frame holds the block. BAD: it doesn't, and is free again. LATE: nor does it, and the device
    may still write to it until `returned` is told, perhaps before the read ends; the block may be good."""

    GOOD = "good"
    BAD = "bad"
    LATE = "late"


class ReadFault(Enum):
    """Why a block can't be had. WRONG: on disk isn't what was written. FAILED: it can't be read now."""

    NONE = "none"
    MISSING = "missing"
    WRONG = "wrong"
    FAILED = "failed"
    LATE = "late"


class Verdict(Struct, frozen=True, kw_only=True):
    """`record`: the block's entry as it stood in the index."""

    fault: ReadFault
    record: bytes = b""
    why: str = ""


class Found(Struct, frozen=True, kw_only=True):
    """A block to be read: its place in the batch, and its entry."""

    position: int
    name: bytes
    record: bytes
    entry: BlockEntry


GOOD = Verdict(fault=ReadFault.NONE)
MISSING = Verdict(fault=ReadFault.MISSING, why="not there")


class BlockReader:
    """For any thread."""

    def __init__(self, table: BlockTable, threads: IoThreads, space: Space) -> None:
        self._table = table
        self._threads = threads
        self._space = space

    def read(
        self,
        names: Sequence[bytes],
        outs: Sequence[Sequence[Part]],
        block_bytes: int,
        pace: Pace,
        returned: Callable[[int], None],
    ) -> list[Verdict]:
        """`outs[n]`: the parts of a frame, one a rank, for the block of `names[n]`. A block whose share of a
        rank isn't `block_bytes` long is as good as missing; 0: any."""
        check(len(names) == len(outs), f"{len(names)} blocks for {len(outs)} frames")
        verdicts = dict.fromkeys(range(len(names)), MISSING)
        found = self._look_up(names, block_bytes * self._space.geometry.ranks, verdicts, returned)
        geometry = self._space.geometry
        slots = [self._space.slot_of(each.entry) for each in found]
        frames = [outs[each.position] for each in found]
        started: list[tuple[Piece, Io[list[Verdict]]]] = []
        try:
            for piece in make_pieces(slots, frames, geometry.stride_bytes, geometry.segment_slots):
                pace(piece.size_bytes)
                blocks = [(found[place], frames[place]) for place in piece.positions]
                call = partial(self._read_piece, piece, blocks)
                started.append((piece, self._threads.start(IoKind.READ, call)))
        finally:
            for piece, io in started:
                positions = [found[place].position for place in piece.positions]
                verdicts.update(zip(positions, self._wait(io, positions, returned), strict=True))
        return [verdicts[position] for position in range(len(names))]

    def verify(self, names: Sequence[bytes], pace: Pace) -> list[Verdict]:
        """Reads blocks of any size only to see whether they are right."""
        geometry = self._space.geometry
        buffer = np.frombuffer(mmap.mmap(-1, max(1, len(names)) * geometry.slot_bytes), np.uint8)
        outs = buffer.reshape(-1, geometry.ranks, geometry.stride_bytes)
        return self.read(names, [list(out) for out in outs[: len(names)]], 0, pace, ignore)

    def _look_up(
        self,
        names: Sequence[bytes],
        wanted_bytes: int,
        verdicts: dict[int, Verdict],
        returned: Callable[[int], None],
    ) -> list[Found]:
        """In a thread for I/O too, since pages of the index may have to come from disk."""
        try:
            records = self._threads.start(IoKind.READ, partial(self._table.find, names)).wait()
        except (IoLate, IoNotBegun) as error:
            # So it is where the index is what can't be read in time.
            for position in verdicts:
                returned(position)
            verdicts.update(dict.fromkeys(verdicts, Verdict(fault=ReadFault.LATE, why=str(error))))
            return []
        except DiskFault as error:
            failed = Verdict(fault=ReadFault.FAILED, why=f"{type(error).__name__}: {error}")
            verdicts.update(dict.fromkeys(verdicts, failed))
            return []
        found: list[Found] = []
        for position, (name, record) in enumerate(zip(names, records, strict=True)):
            if not record:
                continue
            try:
                entry = BlockEntry.unpack(name, record)
            except ValueError as error:
                verdicts[position] = Verdict(fault=ReadFault.WRONG, record=record, why=str(error))
                continue
            if wanted_bytes not in (0, entry.size):
                why = f"{entry.size} bytes, where the frame takes {wanted_bytes}"
                verdicts[position] = Verdict(fault=ReadFault.MISSING, record=record, why=why)
                continue
            found.append(Found(position=position, name=name, record=record, entry=entry))
        return found

    def _read_piece(self, piece: Piece, blocks: Sequence[tuple[Found, Sequence[Part]]]) -> list[Verdict]:
        try:
            fd, offset = self._space.segments.place(piece.slot)
            self._space.files.read(fd, piece.parts, offset)
        except OSError as error:
            return self._read_singly(blocks, error)
        piece.empty_buffer()
        return [_verify(found, frame) for found, frame in blocks]

    def _read_singly(self, blocks: Sequence[tuple[Found, Sequence[Part]]], error: OSError) -> list[Verdict]:
        """One bad sector must not take its neighbours with it."""
        if len(blocks) == 1:
            return [Verdict(fault=ReadFault.FAILED, record=blocks[0][0].record, why=str(error))]
        geometry = self._space.geometry
        verdicts = []
        for found, frame in blocks:
            slot = self._space.slot_of(found.entry)
            [single] = make_pieces([slot], [frame], geometry.stride_bytes, geometry.segment_slots)
            verdicts += self._read_piece(single, [(found, frame)])
        return verdicts

    def _wait(
        self, io: Io[list[Verdict]], positions: Sequence[int], returned: Callable[[int], None]
    ) -> list[Verdict]:
        def tell() -> None:
            for position in positions:
                returned(position)

        try:
            return io.wait(tell)
        except IoLate as error:
            return [Verdict(fault=ReadFault.LATE, why=str(error))] * len(positions)
        except IoNotBegun as error:
            # The block is as good as before, and nothing will ever write to its frame.
            tell()
            return [Verdict(fault=ReadFault.LATE, why=str(error))] * len(positions)


def ignore(position: int) -> None:
    """For those who have nothing to do when a late I/O returns."""


def _verify(found: Found, frame: Sequence[Part]) -> Verdict:
    share = found.entry.size // len(frame)
    if checksum_of(found.name, [part[:share].data for part in frame]) == found.entry.checksum:
        return GOOD
    return Verdict(fault=ReadFault.WRONG, record=found.record, why="wrong checksum")
