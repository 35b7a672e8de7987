"""The disk tier: whole, immutable blocks under their names, in slots of segment files, indexed in LMDB.

It decides nothing: which blocks come and go is the core's affair. What it promises: a batch is stored whole
or not at all, and durably; what `read` gives is what was written under that name, or nothing; the folder
never takes more than the cap; where the disk is full or fails, writing stops (*degraded*) and is tried again,
while reading goes on; and for no I/O does a call wait longer than the deadline.

Its calls may be made from any thread. They block, so none is made from the event loop's.

Not covered: LMDB reads through a map, so a device that fails under a page of the index that is being read
ends the process (SIGBUS). The bytes of blocks are not read so.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvstore.core.errors import ConfigInvalid, check
from kvstore.core.stored import StoredBlocks
from kvstore.core.types import SessionName, StoredKey, StoredSession
from kvstore.tiers.disk_cap import CAP_BYTES_MIN, index_bytes
from kvstore.tiers.disk_environment import disk_invalid
from kvstore.tiers.disk_folder import claim_folder, size_of, warn_of_space
from kvstore.tiers.disk_format import block_name
from kvstore.tiers.disk_health import DiskCounts, WriteHealth
from kvstore.tiers.disk_io import IoKind, IoThreads
from kvstore.tiers.disk_layout import Layout
from kvstore.tiers.disk_notes import DiskNotes
from kvstore.tiers.disk_reading import ReadOutcome, ignore
from kvstore.tiers.disk_scrub import Scrub
from kvstore.tiers.disk_storage import DiskWriteFailed, at_once
from kvstore.tiers.disk_table import BlockTable, DiskFault
from kvstore.tiers.disk_tickets import Ticket, Tickets
from kvstore.tiers.disk_writing import Pace
from kvstore.tiers.files import DirectFiles, Files
from kvstore.tiers.names import Names

__all__ = ["CAP_BYTES_MIN", "DiskCounts", "DiskTier", "DiskWriteFailed", "ReadOutcome"]

log = logging.getLogger(__name__)

DEADLINE_SECONDS = 10.0
CLOSE_SECONDS = 1.0


class DiskTier:
    """`names` gives the small ids that stand in the keys."""

    def __init__(
        self,
        folder: Path,
        claim: int,
        cap_bytes: int,
        clock: Callable[[], float],
        files: Files,
        deadline_seconds: float,
        wipe_incompatible: bool,
    ) -> None:
        """By way of `open`, which holds the folder's lock."""
        self.folder = folder
        self.counts = DiskCounts()
        self._claim = claim
        self._health = WriteHealth(clock)
        self._scrub: Scrub | None = None
        self.tickets = Tickets()
        self._table = BlockTable(folder, index_bytes(0))
        self._threads = IoThreads("kvstore-disk", deadline_seconds)
        self.notes = DiskNotes(folder, self._table, self._threads)
        try:
            rows = self._table.read_names()
            self.names = Names(rows)
            warn_of_space(folder, cap_bytes)
            self._layout = Layout(
                folder,
                self._table,
                files,
                self._threads,
                self.names,
                cap_bytes,
                self.counts,
                self._health,
                names_saved=len(rows),
                wipe_incompatible=wipe_incompatible,
            )
        except BaseException:
            # Whoever opened it gives the claim up.
            if self._threads.close(CLOSE_SECONDS):
                self._table.close()
            raise

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        cap_bytes: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        files: Files | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
        wipe_incompatible: bool = False,
    ) -> "DiskTier":
        """`wipe_incompatible`: what another format or another layout has left in the folder may be deleted;
        of the format now, of the layout when `lay_out` names another."""
        if cap_bytes < CAP_BYTES_MIN:
            remedy = f"at least {CAP_BYTES_MIN}, or no disk tier"
            raise ConfigInvalid("too small", field="disk cap in bytes", value=cap_bytes, remedy=remedy)
        folder = Path(os.path.realpath(path))
        claim = claim_folder(folder, wipe_incompatible=wipe_incompatible)
        try:
            return cls(
                folder, claim, cap_bytes, clock, files or DirectFiles(), deadline_seconds, wipe_incompatible
            )
        except (*DiskFault, ValueError) as error:
            os.close(claim)
            remedy = "`kvstore verify --repair` may save the rest; or delete the folder"
            raise disk_invalid(folder, f"damaged: {error}", remedy) from error
        except BaseException:
            os.close(claim)
            raise

    # --- How it stands.

    @property
    def degraded(self) -> bool:
        """Writing has failed; it is tried again later and later until it succeeds."""
        return self._health.degraded

    @property
    def degraded_reason(self) -> str:
        return self._health.reason

    @property
    def held_blocks(self) -> int:
        """Blocks of all sizes."""
        storage = self._layout.storage
        return storage.space.block_count if storage is not None else 0

    @property
    def held_bytes(self) -> int:
        """What the folder takes of the cap."""
        return size_of(self.folder).held_bytes

    @property
    def writes_queued(self) -> int:
        """Writes that wait for the device, or for reads that go before them."""
        return self._threads.queued(IoKind.WRITE)

    @property
    def late_count(self) -> int:
        """I/Os that have not come back."""
        return self._threads.late_count

    def alive(self) -> bool:
        """False once a thread of its has met a bug: the service must stop then."""
        return self._threads.alive()

    # --- The layout.

    def capacity_blocks(self, block_bytes: int, ranks: int) -> int:
        """How many blocks of this layout there may be at once, `block_bytes` on each rank, beside those of
        other sizes. LayoutMismatch where the folder was laid out for slots of another size."""
        return self._layout.capacity_blocks(block_bytes, ranks)

    def would_wipe(self, block_bytes: int, ranks: int) -> bool:
        """Whether `lay_out` would delete all that is there."""
        return self._layout.would_wipe(block_bytes, ranks)

    def lay_out(self, block_bytes: int, ranks: int) -> None:
        """Before the first block is written or read, and before any other thread calls: once for the blocks
        of one layout. A folder of another is refused as by `capacity_blocks`, or emptied: then its namespaces
        are forgotten too, so that their fingerprints may come with other sizes."""
        self._layout.lay_out(block_bytes, ranks)

    def found(self, block_bytes_all_ranks: int) -> StoredBlocks:
        """The blocks of this size: each after its parent, the least recent chains first.

        Deletes what can't be reached because a block that it hangs on is missing. None where the
        index can't be read: then nothing more is written, for a damaged tree isn't worth adding to.
        """
        try:
            return self._layout.laid_out().found(self.names.namespaces_of_size(block_bytes_all_ranks))
        except DiskFault as error:
            self.counts.read_errors += 1
            fault = f"{type(error).__name__}: {error}"
            self._health.failed_for_good(f"damaged, stop and try `kvstore verify --repair`: {fault}")
            log.error("%s: nothing is written any more: %s", self.folder, self.degraded_reason)
            return StoredBlocks.of(())

    # --- Blocks.

    def write(
        self,
        keys: Sequence[StoredKey],
        payloads: Sequence[Sequence[memoryview]],
        *,
        pace: Pace = at_once,
        ticket: Ticket | None = None,
    ) -> None:
        """Stores blocks, each given as one part a rank: all of them, durably, or none (DiskWriteFailed).

        A part is `block_bytes` long, or padded to the stride: then, at an address that is a multiple of 4096,
        it is written from where it lies. `pace` is called with the bytes of each I/O before it begins.

        Several may write at once. Each is durable after those that were begun before it, and fails where one
        of them that was under way when it began does. `ticket`, one of `tickets`, is its place in that order;
        who has taken it ends it. None: it is begun now.
        """
        if ticket is None:
            with self.tickets.take() as own:
                self.write(keys, payloads, pace=pace, ticket=own)
            return
        storage = self._layout.laid_out()
        if batch := self._layout.batch_of(keys, payloads):
            storage.write(batch, self._layout.block_bytes, pace, ticket)

    def read(
        self,
        keys: Sequence[StoredKey],
        outs: Sequence[Sequence[NDArray[np.uint8]]],
        *,
        pace: Pace = at_once,
        returned: Callable[[int], None] = ignore,
    ) -> list[ReadOutcome]:
        """Fills frames, given as one array a rank, as `write` takes parts; what pads them is overwritten.

        A block that is wrong is deleted, so that it can be stored again. For each that is LATE, `returned`
        is told its position, from another thread, when the device can't write to its frame any more.
        """
        storage = self._layout.laid_out()
        check(len(keys) == len(outs), f"{len(keys)} blocks for {len(outs)} frames")
        for parts in outs:
            self._layout.check_parts(parts)
        return storage.read([block_name(key) for key in keys], outs, self._layout.block_bytes, pace, returned)

    def delete(self, keys: Sequence[StoredKey]) -> None:
        """Forgets blocks; those that aren't there are passed over. What fails is tried again later."""
        storage = self._layout.laid_out()
        storage.stock = None
        storage.deleter.delete([block_name(key) for key in keys])

    def settle(self) -> bool:
        """Tries once more what could not be deleted or forgotten. True: all that was asked for before is off
        the disk, durably, and nothing that was given up as late can bring it back."""
        return self._layout.laid_out().settle()

    def note_uses(self, keys: Sequence[StoredKey]) -> None:
        """That these blocks were of use just now, for the order in which a restart tells of them."""
        self._layout.laid_out().note_uses([block_name(key) for key in keys])

    # --- Sessions.

    def sessions(self) -> list[StoredSession]:
        """As they were found at the start, the least recently kept first, of namespaces of all sizes. Each
        has a block left at least."""
        return self._layout.laid_out().sessions.found

    def keep_sessions(self, sessions: Sequence[StoredSession]) -> None:
        """Durably when it returns, but where the tier is degraded: then with the next write that succeeds."""
        self._layout.laid_out().sessions.keep(sessions)

    def forget_sessions(self, names: Sequence[SessionName]) -> None:
        self._layout.laid_out().sessions.forget(names)

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Only when no thread is in a call. False where an I/O never came back: then what it may touch, the
        index and the segments, stays open for as long as the process lives, and the folder locked."""
        end = time.monotonic() + seconds
        # The scrub first: it starts I/Os of its own.
        if self._scrub is not None and not self._scrub.close(seconds):
            return False
        if not self._threads.close(max(0.0, end - time.monotonic())):
            return False
        if self._layout.storage is not None:
            self._layout.storage.space.close()
        self._table.close()
        if self._claim >= 0:
            os.close(self._claim)
            self._claim = -1
        return True

    def start_scrub(
        self, lost: Callable[[Sequence[StoredKey]], None], bytes_a_second: int, pause_seconds: float = 3600.0
    ) -> None:
        """Has a thread look at all blocks, again and again with a pause between, at a low rate. `lost` is
        called from it with blocks that it found wrong and so deleted; parent and writer aren't told."""
        storage = self._layout.laid_out()
        check(self._scrub is None, "a second scrub")
        self._scrub = Scrub(storage, self._health, lost, bytes_a_second, pause_seconds)
