"""What is found in the index at the start: entries that can't be good are dropped, the others told with their
slots and with how recent they are."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvstore.tiers.disk_format import Geometry
from kvstore.tiers.disk_health import DiskCounts
from kvstore.tiers.disk_index import FoundBlocks
from kvstore.tiers.disk_records import USE_BYTES
from kvstore.tiers.disk_table import BlockTable, DiskFault

__all__ = ["NO_SLOTS", "Stock", "remove_in_parts", "take_stock"]

log = logging.getLogger(__name__)

REMOVE_MAX = 1024
# Beyond these, bad entries are counted and no longer told one by one.
TOLD_MAX = 100
NO_SLOTS = np.empty(0, np.intp)


class Stock(Struct, frozen=True, kw_only=True):
    """`slots` and `recent_ns` (when each was last used or written) are in step with `blocks`."""

    blocks: FoundBlocks
    slots: NDArray[np.intp]
    recent_ns: NDArray[np.uint64]
    # Slots that nobody may fill: bad entries that couldn't be deleted name them.
    barred: NDArray[np.intp] = NO_SLOTS

    def __len__(self) -> int:
        return len(self.blocks)

    def take(self, places: NDArray[np.intp] | NDArray[np.bool_]) -> "Stock":
        return Stock(
            blocks=self.blocks.take(places),
            slots=self.slots[places],
            recent_ns=self.recent_ns[places],
            barred=self.barred,
        )


def take_stock(
    folder: Path, table: BlockTable, geometry: Geometry, segments: Sequence[int], counts: DiskCounts
) -> Stock:
    """`segments`: those that are there. DiskFault where the index can't be read."""
    blocks, bad = table.read_index()
    _tell(folder, bad, "its entry can't be read", counts)
    slots = blocks.segment.astype(np.intp) * geometry.segment_slots + blocks.slot
    is_there = np.isin(blocks.segment, segments)
    fits = (blocks.slot < geometry.segment_slots) & (blocks.size <= geometry.slot_bytes)
    is_last = _is_last_in_its_slot(slots, blocks.created_ns)
    is_good = is_there & fits & is_last
    barred = slots[~is_good]
    if not is_good.all():
        _tell(folder, blocks.take(~is_there).names(), "its segment is missing", counts)
        _tell(folder, blocks.take(is_there & ~fits).names(), "its entry names no slot", counts)
        _tell(folder, blocks.take(is_there & fits & ~is_last).names(), "another has its slot", counts)
        bad += blocks.take(~is_good).names()
        blocks, slots = blocks.take(is_good), slots[is_good]
    # What can't be deleted now is found again at the next start; till then nobody hears of it.
    if not remove_in_parts(folder, table, bad):
        barred = NO_SLOTS
    recent_ns = np.maximum(blocks.created_ns, _read_uses(table, blocks))
    return Stock(blocks=blocks, slots=slots, recent_ns=recent_ns, barred=barred)


def remove_in_parts(folder: Path, table: BlockTable, names: Sequence[bytes]) -> list[bytes]:
    """Deletes blocks before anybody counts their slots. Returns those that may be there still."""
    for start in range(0, len(names), REMOVE_MAX):
        try:
            table.remove(names[start : start + REMOVE_MAX])
        except DiskFault as error:
            left = list(names[start:])
            fault = f"{type(error).__name__}: {error}"
            log.warning("%s: %d blocks not deleted yet: %s", folder, len(left), fault)
            return left
    return []


def _is_last_in_its_slot(slots: NDArray[np.intp], created_ns: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Only in a damaged index are there two in one slot; what is there is the younger one's, if anybody's."""
    is_last = np.ones(slots.size, np.bool_)
    ascending = np.sort(slots)
    if (ascending[1:] != ascending[:-1]).all():
        return is_last
    order = np.lexsort((created_ns, slots))
    is_last[order[:-1]] = np.diff(slots[order]) != 0
    return is_last


def _read_uses(table: BlockTable, blocks: FoundBlocks) -> NDArray[np.uint64]:
    """0 for those that were never used. A time in the future is a wrong one, and would never pass."""
    uses = table.read_uses()
    if not uses:
        return np.zeros(len(blocks), np.uint64)
    records = [uses.get(name, b"") for name in blocks.names()]
    good = [record if len(record) == USE_BYTES else bytes(USE_BYTES) for record in records]
    rows = np.frombuffer(b"".join(good), [("time_ns", ">u8"), ("count", ">u4")])
    times = rows["time_ns"].astype(np.uint64)
    return np.where(times <= time.time_ns(), times, np.uint64(0))


def _tell(folder: Path, names: list[bytes], why: str, counts: DiskCounts) -> None:
    counts.bad_entries += len(names)
    for name in names[:TOLD_MAX]:
        log.warning("%s: block %s is dropped: %s", folder, name.hex(), why)
    if len(names) > TOLD_MAX:
        log.warning("%s: %d more blocks are dropped: %s", folder, len(names) - TOLD_MAX, why)
