"""What takes effect when an engine's work has completed: commits become visible, references
end, copies may begin. One pass over all fences that the completed step has passed.
"""

import numpy as np

from kvstore.core.blocks import NO_ROWS, Rows, concat
from kvstore.core.committing import Committing
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine, Publish, Release, SessionEnd, SwapOut, TurnEnd, Used
from kvstore.core.judging import Judging
from kvstore.core.later import LOT_BLOCKS, Later
from kvstore.core.links import Links
from kvstore.core.memory import Memory
from kvstore.core.ports import AdmissionPolicy
from kvstore.core.sequences import session_owner
from kvstore.core.sessions import Sessions
from kvstore.core.swaps import Swaps
from kvstore.core.types import COPY, CPU, DISK, WRITE, Retention, Tier
from kvstore.core.uses import Chains, tell_over, tell_uses

__all__ = ["Settling"]

REFUSED = {CPU: "not copied to the CPU tier", DISK: "not written"}
WHY_REFUSED = "no session has it, and it is not likely enough to be read again"


class Settling:
    """Lets happen what an engine's steps have only announced."""

    def __init__(
        self,
        config: StoreConfig,
        memory: Memory,
        links: Links,
        swaps: Swaps,
        committing: Committing,
        sessions: Sessions,
        judging: Judging,
        later: Later,
        admission: AdmissionPolicy | None,
    ) -> None:
        self._config = config
        self._memory = memory
        self._links = links
        self._swaps = swaps
        self._committing = committing
        self._sessions = sessions
        self._judging = judging
        self._later = later
        self._admission = admission

    def settle(self, engine: Engine) -> None:
        if not engine.fences:
            return
        publications: list[Publish] = []
        uses: list[Used] = []
        outs: list[SwapOut] = []
        releases: list[Release] = []
        ends: list[TurnEnd | SessionEnd] = []
        for fence in engine.settled():
            match fence:
                case Publish():
                    publications.append(fence)
                case Used():
                    uses.append(fence)
                case SwapOut():
                    outs.append(fence)
                case Release():
                    releases.append(fence)
                case _:
                    ends.append(fence)
        if publications:
            self._committing.publish(engine, publications)
        chains: Chains = {}
        if uses:
            chains = tell_uses(self._memory, uses)
        for out in outs:
            self._swaps.out.begin(out.sequence, out.fence)
        if releases:
            self._release(releases)
        for end in ends:
            if isinstance(end, TurnEnd):
                self._end_turn(end, chains)
            else:
                self._end_session(end)

    def _release(self, releases: list[Release]) -> None:
        """References end; what is left without any stays as cache, or goes."""
        rows = concat([release.rows for release in releases])
        self._memory.release(rows, distinct=len(releases) == 1 and releases[0].distinct)
        for retention in dict.fromkeys([release.retention for release in releases]):
            self.retain(concat([each.rows for each in releases if each.retention is retention]), retention)

    def retain(self, rows: Rows, retention: Retention) -> None:
        """What becomes of the cached blocks among `rows`, heads first, that were just released."""
        if not self._config.cpu_frames and retention is not Retention.DISCARD:
            return
        blocks = self._memory.blocks
        rows = rows[blocks.indexed[rows]]
        if retention is Retention.DISCARD:
            unused = np.unique(rows[~blocks.reused[rows]])
            tell_over(self._memory, unused)
            self._memory.discard(unused)
            return
        if self._memory.unwanted.size:
            # A turn that is kept, and began before its session's end was told, has the last word.
            if retention is Retention.CACHE:
                rows = rows[~blocks.unwanted[rows]]
            blocks.unwanted[rows] = False
        stored = NO_ROWS
        if retention is Retention.CACHE:
            if not self._later.is_time:
                self._later.put_off(rows[~blocks.has_frame(CPU, rows)])
                return
            if self._admission is not None:
                stored, rows = self._admit(self._admission, rows)
        elif retention is Retention.DEFAULT and self._judging.is_on:
            blocks.undecided[rows[~blocks.to_disk[rows]]] = True
        else:
            stored = rows
        if self._config.disk_frames and stored.size:
            blocks.to_disk[stored], blocks.undecided[stored] = True, False
            self._links.ask_down(WRITE, stored[blocks.valid[CPU][stored]])
        # Copied down before they are evicted, so that eviction is a change of the table.
        self._links.ask_down(COPY, rows[~blocks.valid[DISK][rows]])

    def keep_put_off(self) -> None:
        """Some of what was to be copied down later, if it is time for it: no more than is not shed."""
        if not (self._later.has_any and self._later.is_time):
            return
        count = min(LOT_BLOCKS, self._links.places_left)
        if count:
            self.retain(self._later.take(count), Retention.CACHE)

    def _admit(self, admission: AdmissionPolicy, rows: Rows) -> tuple[Rows, Rows]:
        """Which of these cached blocks are to go to disk, and which to the CPU tier at least."""
        blocks, tails_first = self._memory.blocks, self._memory.blocks.distinct(rows)[::-1]
        to_disk, to_cpu = admission.admits((DISK, CPU), tails_first)
        stored = to_disk & ~blocks.to_disk[tails_first]
        copied = to_cpu | stored
        if self._config.disk_frames:
            left_out = tails_first[~stored & ~blocks.to_disk[tails_first]]
            self._note_refusal(admission, DISK, left_out)
        self._note_refusal(admission, CPU, tails_first[~copied])
        return tails_first[stored][::-1], tails_first[copied][::-1]

    def _note_refusal(self, admission: AdmissionPolicy, target: Tier, rows: Rows) -> None:
        """For who asks why."""
        counts = (("blocks_refused", float(rows.size)),)
        self._memory.note_admission(
            rows, REFUSED[target], WHY_REFUSED, counts, lambda: admission.told(target, rows)
        )

    def _end_turn(self, end: TurnEnd, chains: Chains) -> None:
        """Of its chain another may have published blocks first, under the same keys: what the turn computed
        went with its sequence, so these are the session's now, and are to outlive the service for it."""
        self._sessions.keep(end.domain, end.session, end.turn, end.keys)
        if not self._config.disk_frames:
            return
        blocks, owner = self._memory.blocks, session_owner(end.domain, end.session)
        known = chains.get((end.domain, end.keys[-1]))
        if known is None:
            rows = np.array(self._memory.prefix.find_prefix(end.domain, end.keys, {}), np.intp)
        else:
            # Some may have gone with others' references since they were looked up.
            rows = known[blocks.indexed[known]]
        foreign = blocks.owner[rows] != owner
        waits = blocks.undecided[rows] & (end.retention is Retention.DEFAULT)
        rows = rows[foreign & (blocks.unwanted[rows] | ~(blocks.to_disk[rows] | waits))]
        if rows.size:
            blocks.unwanted[rows] = False
            blocks.reused[rows] = True
            blocks.name_owner(rows, owner)
            self.retain(rows, end.retention)

    def _end_session(self, end: SessionEnd) -> None:
        blocks, owner = self._memory.blocks, session_owner(end.domain, end.session)
        mine = np.flatnonzero(blocks.indexed & (blocks.owner == owner) & ~blocks.shared).astype(np.intp)
        tell_over(self._memory, mine)
        self._sessions.end(end.domain, end.session)
        self._memory.discard(mine)
