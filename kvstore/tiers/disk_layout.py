"""The layout of the blocks that a folder is for: settled once, it makes the size of the slots. Another one is
refused, or wipes the folder where that is allowed.
"""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvstore.core.errors import CheckFailed, LayoutMismatch, check
from kvstore.core.types import StoredKey
from kvstore.tiers.disk_cap import CAP_BYTES_MIN, blocks_max, segment_slots, slot_count
from kvstore.tiers.disk_environment import WIPE
from kvstore.tiers.disk_format import Geometry, block_name
from kvstore.tiers.disk_health import DiskCounts, WriteHealth
from kvstore.tiers.disk_io import IoThreads
from kvstore.tiers.disk_pieces import Part
from kvstore.tiers.disk_storage import Storage, remove_segments
from kvstore.tiers.disk_table import BlockTable
from kvstore.tiers.disk_writing import Batch
from kvstore.tiers.files import Files
from kvstore.tiers.names import Names
from kvstore.tiers.pool import frame_stride_bytes

__all__ = ["Layout"]

log = logging.getLogger(__name__)


class Layout:
    """`storage`: what there is once the size is known; None until then. `block_bytes`: of the blocks that are
    written and read now, on each rank; 0 until then."""

    def __init__(
        self,
        folder: Path,
        table: BlockTable,
        files: Files,
        threads: IoThreads,
        names: Names,
        cap_bytes: int,
        counts: DiskCounts,
        health: WriteHealth,
        *,
        names_saved: int,
        wipe_incompatible: bool,
    ) -> None:
        """As the folder is found. DiskFault where it can't be read."""
        self.storage: Storage | None = None
        self.block_bytes = 0
        self._folder = folder
        self._table = table
        self._files = files
        self._threads = threads
        self._names = names
        # Whoever asks for more than there is gets all there is, and no tables for more.
        self._cap_bytes = min(cap_bytes, max(CAP_BYTES_MIN, shutil.disk_usage(folder).total))
        self._counts = counts
        self._health = health
        self._names_saved = names_saved
        self._wipe_incompatible = wipe_incompatible
        geometry = table.read_geometry()
        if geometry is None:
            remove_segments(folder, files)
        else:
            self._set_up(geometry, is_new=False)

    def laid_out(self) -> Storage:
        if self.storage is None or not self.block_bytes:
            raise CheckFailed("the disk tier has no layout yet")
        return self.storage

    def capacity_blocks(self, block_bytes: int, ranks: int) -> int:
        """As `DiskTier.capacity_blocks`."""
        storage, geometry = self.storage, self._geometry_for(block_bytes, ranks)
        if storage is None or not storage.geometry.fits(geometry):
            if storage is not None and not self._wipe_incompatible:
                there = storage.geometry
                raise LayoutMismatch(
                    f"{self._folder} holds blocks of {there.ranks} x {there.stride_bytes} bytes, padded",
                    field="layout.ranks x layout.block_bytes",
                    value=f"{ranks} x {block_bytes}",
                    remedy=WIPE,
                )
            return blocks_max(slot_count(self._cap_bytes, geometry.slot_bytes, geometry.segment_slots))
        own = self._names.namespaces_of_size(block_bytes * ranks)
        others = storage.space.block_count - storage.space.blocks_of(own)
        if others:
            log.warning("%s: blocks of other sizes hold %d of its slots", self._folder, others)
        return max(0, storage.space.capacity - others)

    def would_wipe(self, block_bytes: int, ranks: int) -> bool:
        """As `DiskTier.would_wipe`."""
        is_other = self.storage is not None and not self.storage.geometry.fits(
            self._geometry_for(block_bytes, ranks)
        )
        return is_other and self._wipe_incompatible

    def lay_out(self, block_bytes: int, ranks: int) -> None:
        """As `DiskTier.lay_out`."""
        self.capacity_blocks(block_bytes, ranks)
        geometry = self._geometry_for(block_bytes, ranks)
        if self.storage is not None and not self.storage.geometry.fits(geometry):
            self._wipe(self.storage)
        if self.storage is None:
            self._set_up(geometry, is_new=True)
        self.block_bytes = block_bytes

    def batch_of(self, keys: Sequence[StoredKey], payloads: Sequence[Sequence[memoryview]]) -> Batch:
        """Blocks to be written, by their names."""
        check(len(keys) == len(payloads), f"{len(keys)} keys for {len(payloads)} blocks")
        batch: dict[bytes, tuple[StoredKey, list[Part]]] = {}
        for key, payload in zip(keys, payloads, strict=True):
            parts: list[Part] = [np.frombuffer(part, np.uint8) for part in payload]
            self.check_parts(parts)
            batch[block_name(key)] = key, parts
        return batch

    def check_parts(self, parts: Sequence[Part]) -> None:
        """Whether a block is given as this layout has it."""
        geometry, sizes = self.laid_out().geometry, {part.nbytes for part in parts}
        good = len(parts) == geometry.ranks and sizes <= {self.block_bytes, geometry.stride_bytes}
        check(good, f"a block of {len(parts)} parts of {sizes} bytes, where {geometry} is")

    def _geometry_for(self, block_bytes: int, ranks: int) -> Geometry:
        """What a new folder would get."""
        stride = frame_stride_bytes(block_bytes)
        slots = segment_slots(self._cap_bytes, stride * ranks)
        return Geometry(stride_bytes=stride, ranks=ranks, segment_slots=slots)

    def _set_up(self, geometry: Geometry, *, is_new: bool) -> None:
        self.storage = Storage(
            self._folder,
            self._table,
            self._files,
            self._threads,
            self._names,
            geometry,
            self._cap_bytes,
            self._counts,
            self._health,
            names_saved=self._names_saved,
            is_new=is_new,
        )

    def _wipe(self, storage: Storage) -> None:
        """Its blocks first: without them no segment is missed."""
        log.warning("%s: %d blocks of another layout are deleted", self._folder, storage.space.block_count)
        # Also where this fails it may be durable: then the next write saves all of them.
        saved = storage.writer.names_saved
        storage.writer.save_anew()
        self._table.clear()
        self._names.forget_namespaces(saved)
        self._names_saved = 0
        storage.space.close()
        self.storage = None
        remove_segments(self._folder, self._files)
