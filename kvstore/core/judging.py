"""Whether what belongs to a session is worth a write is asked when it is about to leave the CPU tier.

By then most of what comes back soon has done so, without the disk, and more is known of the rest. Only with
`StoreConfig.judges_turns`, and only of turns that were freed without saying what is to become of them. What a
request names itself is done: SESSION goes to disk at once, what is retained is written when it is looked at.
"""

import numpy as np

from kvstore.core.blocks import NO_FRAME
from kvstore.core.config import StoreConfig
from kvstore.core.links import Links
from kvstore.core.memory import Memory
from kvstore.core.ports import AdmissionPolicy
from kvstore.core.tree import with_ancestors
from kvstore.core.types import COPY, CPU, DISK, WRITE, Rows

__all__ = ["Judging"]

WHY_TAKEN = "about to leave the CPU tier, and likely enough to be read again, or retained"
WHY_REFUSED = "about to leave the CPU tier, and not likely enough to be read again"
INTERVAL_SECONDS = 1.0
# Share of the CPU tier that is free, beside what is kept for passage, when nothing has to leave it soon.
FREE_SHARE = 0.10
# What is looked at, for it may leave the CPU tier until the next look: this share of it, within these bounds.
EDGE_SHARE = 1 / 4
EDGE_MIN, EDGE_MAX = 64, 1_024


class Judging:
    """Looks at the blocks of least worth in the CPU tier, once a second at the most."""

    def __init__(
        self, config: StoreConfig, memory: Memory, links: Links, admission: AdmissionPolicy | None
    ) -> None:
        self._config = config
        self._memory = memory
        self._links = links
        self._admission = admission if config.judges_turns and config.disk_frames else None
        self._next_look = 0.0

    @property
    def is_on(self) -> bool:
        """Whether turns wait for it, or go to disk at once."""
        return self._admission is not None

    def look(self, time: float) -> None:
        """Time has passed."""
        pool = self._memory.pools[CPU]
        if self._admission is None or time < self._next_look:
            return
        self._next_look = time + INTERVAL_SECONDS
        if pool.free_count > FREE_SHARE * pool.frame_count + self._config.cpu_frames_reserved:
            return
        edge = min(max(EDGE_MIN, round(EDGE_SHARE * pool.frame_count)), EDGE_MAX)
        rows = self._memory.eviction.victims(CPU, min(edge, pool.frame_count), lambda rows: rows)
        rows = rows[self._memory.blocks.undecided[rows]]
        if rows.size:
            self._judge(self._admission, rows)

    def _judge(self, admission: AdmissionPolicy, rows: Rows) -> None:
        """Of one session's blocks tails stand before heads."""
        blocks, retained = self._memory.blocks, self._memory.retained
        blocks.undecided[rows] = False
        rows = rows[~blocks.unwanted[rows]]
        rows = rows[np.lexsort((-blocks.depth[rows], blocks.owner[rows]))]
        good = admission.admits_turns(rows)
        if retained.has_any:
            good |= retained.is_retained(rows)
        self._note(admission, rows[~good], "not written", WHY_REFUSED, "blocks_refused")
        self._note(admission, rows[good], "to be written", WHY_TAKEN, "blocks_taken")
        self._write(rows[good])

    def _note(self, admission: AdmissionPolicy, rows: Rows, chosen: str, why: str, count: str) -> None:
        """For who asks why."""
        counts = ((count, float(rows.size)),)
        self._memory.note_admission(
            rows, chosen, why, counts, lambda: admission.told(DISK, rows, are_turns=True)
        )

    def _write(self, rows: Rows) -> None:
        """And what they hang on: without it, they can't be read."""
        blocks = self._memory.blocks
        rows = with_ancestors(blocks, rows)
        rows = rows[(blocks.frame[DISK][rows] == NO_FRAME) & ~blocks.to_disk[rows]]
        rows = rows[np.argsort(blocks.depth[rows], kind="stable")]
        blocks.undecided[rows] = blocks.unwanted[rows] = False
        blocks.to_disk[rows] = True
        on_cpu = blocks.valid[CPU][rows]
        self._links.ask_down(WRITE, rows[on_cpu])
        self._links.ask_down(COPY, rows[~on_cpu])
