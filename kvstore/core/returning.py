"""Sequences that come in with content below the GPU: how much of its head is worth loading.

What is not loaded is computed by the engine, which is told fewer cached or valid tokens. So a slow link, or a
long queue for it, never makes a sequence wait for longer than its prefill would take.
"""

from array import array

import numpy as np

from kvstore.core.blocks import all_of
from kvstore.core.config import StoreConfig
from kvstore.core.links import Links
from kvstore.core.memory import Memory
from kvstore.core.operations import Decision
from kvstore.core.ports import Restore, SwapPolicy, TierRun, Verdict
from kvstore.core.sequences import Sequence
from kvstore.core.types import CPU, DISK, GPU, LOAD, READ, Tier

__all__ = ["Returning"]

# A chain that lies about in more pieces than this is loaded whole.
RUNS_MAX = 64


class Returning:
    """Asks the policy, and remembers what it said of those who got their frames."""

    def __init__(self, config: StoreConfig, memory: Memory, links: Links, policy: SwapPolicy) -> None:
        self._config = config
        self._memory = memory
        self._links = links
        self._policy = policy
        # Weighed since the start: of those that came in so, how many with all that was found, and how many
        # with its head alone, or nothing of it.
        self.loads_whole = self.loads_cut = 0

    def weigh(self, found: "array[int]", tokens: int) -> Verdict | None:
        """How many of these leading blocks, which hold `tokens`, are worth having; None: all.

        A block whose GPU frame is on its way to be filled for somebody else is as good as there.
        """
        if not found or not self._config.cpu_frames:
            return None
        # Most prompts that are found are found here: that is to cost two calls and no copy.
        blocks, rows = self._memory.blocks, np.frombuffer(found, np.intp)
        if all_of(blocks.valid[GPU].take(rows)):
            return None
        on_gpu = blocks.has_frame(GPU, rows)
        if all_of(on_gpu):
            return None
        tiers = np.where(on_gpu, GPU, np.where(blocks.valid[CPU][rows], CPU, DISK))
        begins = np.flatnonzero(np.diff(tiers, prepend=-1))
        if begins.size > RUNS_MAX:
            return Verdict(
                keeps=True,
                blocks=rows.size,
                reason=f"it lies about in more than {RUNS_MAX} pieces",
                inputs=(("tokens", float(tokens)), ("pieces", float(begins.size))),
            )
        counts = np.diff(begins, append=rows.size)
        runs: list[TierRun] = list(zip(map(Tier, tiers[begins].tolist()), counts.tolist(), strict=True))
        return self._policy.load(
            Restore(
                time=self._memory.now,
                tokens=tokens,
                block_tokens=self._config.block_tokens,
                runs=tuple(runs),
                load=self._links.state(LOAD),
                read=self._links.state(READ),
            )
        )

    def note(self, sequence: Sequence, verdict: Verdict) -> None:
        """It has got its frames so."""
        if verdict.seconds or verdict.other_seconds:
            self.loads_whole += verdict.keeps
            self.loads_cut += not verdict.keeps
        self._memory.decisions.note(
            Decision(
                time=self._memory.now,
                kind="restore",
                chosen=_way(verdict.loads, verdict.loads + 1, is_whole=verdict.keeps),
                other=_way(verdict.other_loads, verdict.loads, is_whole=verdict.other_is_whole)
                if verdict.other_loads != verdict.loads
                else "",
                chosen_cost_seconds=verdict.seconds,
                other_cost_seconds=verdict.other_seconds,
                reason=verdict.reason,
                engine=sequence.engine,
                sequence=sequence.id,
                session=sequence.told_session,
                tenant=self._memory.shares.tenant_of(sequence.domain),
                inputs=(("block_tokens", float(self._config.block_tokens)), *verdict.inputs),
            )
        )


def _way(loads: int, other_loads: int, *, is_whole: bool) -> str:
    """To load so many blocks, beside the other way; and whether that is all that was found."""
    if is_whole:
        return "load all"
    if not loads:
        return "load nothing, compute the rest"
    return "load the head, compute the rest" if loads < other_loads else "load more, compute the rest"
