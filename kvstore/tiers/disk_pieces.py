"""Blocks of a batch put together to pieces: neighbours on disk, which one I/O moves.

A block's parts, one a rank, are moved as they lie where they may be: at an address that is a multiple of
4096, with what pads them to the stride of a slot. Others go through a buffer of the piece's own.
"""

import mmap
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvstore.tiers.files import ALIGNMENT

__all__ = ["PIECE_BYTES", "Part", "Piece", "make_pieces"]

# Large enough that an I/O's fixed cost doesn't show, small enough that a read waits a few ms for a write.
PIECE_BYTES = 4 << 20

# A rank's share of a block: its bytes, and what pads them where the caller has that.
Part = NDArray[np.uint8]


class Piece(Struct, frozen=True, kw_only=True):
    """`positions` in the batch, of the blocks in slots from `slot` on; `parts` are what the device moves.

    `bounced`: a pair for each part that isn't moved itself, the part and its place in the buffer.
    """

    slot: int
    positions: list[int]
    parts: list[memoryview]
    bounced: list[tuple[Part, Part]]

    @property
    def size_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def fill_buffer(self) -> None:
        """Before a write."""
        for part, place in self.bounced:
            place[: part.size] = part

    def empty_buffer(self) -> None:
        """After a read."""
        for part, place in self.bounced:
            part[:] = place[: part.size]


def make_pieces(
    slots: Sequence[int],
    blocks: Sequence[Sequence[Part]],
    stride_bytes: int,
    segment_slots: int,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[Piece]:
    """`slots[n]` is where `blocks[n]` stands. In the order of slots, each piece within one segment."""
    slot_bytes = stride_bytes * len(blocks[0]) if blocks else 0
    run: list[int] = []
    for position in sorted(range(len(slots)), key=slots.__getitem__):
        if run:
            slot = slots[position]
            follows = slot == slots[run[-1]] + 1 and slot % segment_slots
            if not follows or (len(run) + 1) * slot_bytes > piece_bytes:
                yield _make_piece(slots[run[0]], run, blocks, stride_bytes)
                run = []
        run.append(position)
    if run:
        yield _make_piece(slots[run[0]], run, blocks, stride_bytes)


def _make_piece(slot: int, run: list[int], blocks: Sequence[Sequence[Part]], stride_bytes: int) -> Piece:
    parts = [part for position in run for part in blocks[position]]
    loose = [place for place, part in enumerate(parts) if not _can_move(part, stride_bytes)]
    if not loose:
        return Piece(slot=slot, positions=run, parts=[part.data for part in parts], bounced=[])
    # A fresh map: aligned, and zeros behind the ends of the parts.
    buffer = np.frombuffer(mmap.mmap(-1, len(loose) * stride_bytes), np.uint8).reshape(-1, stride_bytes)
    bounced = [(parts[place], row) for place, row in zip(loose, buffer, strict=True)]
    for place, row in zip(loose, buffer, strict=True):
        parts[place] = row
    return Piece(slot=slot, positions=run, parts=[part.data for part in parts], bounced=bounced)


def _can_move(part: Part, stride_bytes: int) -> bool:
    return part.nbytes == stride_bytes and part.__array_interface__["data"][0] % ALIGNMENT == 0
