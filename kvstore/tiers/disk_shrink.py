"""A folder that holds more than the cap leaves room for: the least recent blocks go, those that stand behind
the cap are moved below it, and what is then empty is given back to the file system.

All of it before anything is served, so that the cap holds from then on.
"""

import logging
import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvstore.tiers.disk_format import BlockEntry, checksum_of
from kvstore.tiers.disk_health import DiskCounts
from kvstore.tiers.disk_order import most_recent
from kvstore.tiers.disk_space import Space
from kvstore.tiers.disk_start import NO_SLOTS, Stock, remove_in_parts
from kvstore.tiers.disk_table import BlockTable, DiskFault

__all__ = ["cull", "move_below"]

log = logging.getLogger(__name__)

# Moved with one sync and one transaction.
MOVE_BYTES = 64 << 20


def cull(folder: Path, table: BlockTable, stock: Stock, slot_count: int) -> tuple[Stock, Stock]:
    """What is left when the least recent blocks are deleted, so many that the rest has room; and those that
    were to be deleted and couldn't be."""
    if len(stock) <= slot_count:
        return stock, stock.take(NO_SLOTS)
    places = most_recent(stock.blocks, stock.recent_ns, len(stock))
    is_kept, is_orphan = np.zeros(len(stock), np.bool_), np.ones(len(stock), np.bool_)
    is_kept[places[:slot_count]] = True
    is_orphan[places] = False
    # None before those that hang on it, however far this gets.
    gone = stock.take(np.concatenate([np.flatnonzero(is_orphan), places[slot_count:][::-1]]))
    log.warning("%s: %d of %d blocks are deleted: the cap is smaller", folder, len(gone), len(stock))
    left = remove_in_parts(folder, table, gone.blocks.names())
    return stock.take(is_kept), gone.take(np.arange(len(gone) - len(left), len(gone)))


def move_below(
    folder: Path, table: BlockTable, space: Space, stock: Stock, others: NDArray[np.intp], counts: DiskCounts
) -> Stock:
    """Segments are open. Blocks that can't be moved are deleted; if they can't be, they stay. `others`: slots
    that entries name besides those of the stock."""
    high = np.flatnonzero(stock.slots >= space.slot_count)
    if high.size:
        others = np.concatenate([others, stock.barred])
        free = _free_slots(space, np.concatenate([stock.slots, others]))[: high.size]
        is_kept = np.ones(len(stock), np.bool_)
        is_kept[high[free.size :]] = False
        high = high[: free.size]
        slots, barred = stock.slots.copy(), stock.barred
        step = max(1, MOVE_BYTES // space.geometry.slot_bytes)
        for start in range(0, free.size, step):
            places, targets = high[start : start + step], free[start : start + step]
            try:
                is_moved = np.array(_move(table, space, stock.blocks.take(places).names(), targets))
                is_kept[places] = is_moved
                slots[places[is_moved]] = targets[is_moved]
            except DiskFault as error:
                log.error("%s: blocks behind the cap can't be moved: %s", folder, error)
                is_kept[places] = False
                # The transaction may be durable all the same.
                barred = np.concatenate([barred, targets])
        counts.bad_entries += int((~is_kept).sum())
        gone = np.flatnonzero(~is_kept)
        left = remove_in_parts(folder, table, stock.blocks.take(gone).names())
        is_kept[gone[gone.size - len(left) :]] = True
        stock = replace(stock, slots=slots, barred=barred if left else stock.barred).take(is_kept)
    named = np.concatenate([stock.slots, stock.barred, others])
    behind = named[named >= space.slot_count] // space.geometry.segment_slots
    _shorten(folder, space, set(behind.tolist()))
    return stock


def _free_slots(space: Space, used: NDArray[np.intp]) -> NDArray[np.intp]:
    is_free = np.zeros(space.slot_count, np.bool_)
    for segment in space.segments.numbers:
        is_free[segment * space.geometry.segment_slots : space.segments.ends_at(segment)] = True
    is_free[used[used < space.slot_count]] = False
    return np.flatnonzero(is_free)


def _move(table: BlockTable, space: Space, names: Sequence[bytes], slots: NDArray[np.intp]) -> list[bool]:
    """Durably. False for a block that can't be read or isn't what was written. DiskFault where not all is
    done."""
    segment_slots = space.geometry.segment_slots
    buffer = memoryview(mmap.mmap(-1, space.geometry.slot_bytes))
    entries: dict[bytes, BlockEntry] = {}
    for name, record, slot in zip(names, table.find(names), slots.tolist(), strict=True):
        entry = BlockEntry.unpack(name, record)
        if _read(space, entry, buffer) and _is_whole(name, entry, buffer, space.geometry.ranks):
            fd, offset = space.segments.place(slot)
            space.files.write(fd, [buffer], offset)
            entries[name] = replace(entry, segment=slot // segment_slots, slot=slot % segment_slots)
    for segment in {entry.segment for entry in entries.values()}:
        space.files.sync(space.segments.place(segment * segment_slots)[0])
    table.put([], None, entries)
    return [name in entries for name in names]


def _read(space: Space, entry: BlockEntry, buffer: memoryview) -> bool:
    """One bad sector must not cost the others of its batch."""
    try:
        fd, offset = space.segments.place(space.slot_of(entry))
        space.files.read(fd, [buffer], offset)
    except OSError as error:
        log.warning("slot %d of segment %d can't be read: %s", entry.slot, entry.segment, error)
        return False
    return True


def _is_whole(name: bytes, entry: BlockEntry, slot: memoryview, ranks: int) -> bool:
    share, stride = entry.size // ranks, len(slot) // ranks
    return entry.checksum == checksum_of(name, [slot[n * stride :][:share] for n in range(ranks)])


def _shorten(folder: Path, space: Space, kept: set[int]) -> None:
    """All but those whose blocks couldn't be moved."""
    for segment in space.segments.numbers:
        if segment not in kept:
            try:
                space.segments.shorten(segment)
            except OSError as error:
                log.error("%s: segment %d can't be given back: %s", folder, segment, error)
