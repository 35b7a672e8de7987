"""A trace replayed against an eviction policy: nothing but which blocks are where.

Tiers are exclusive, as a hierarchy of caches is: a block that is used comes to the uppermost, what has to
leave there goes to the one below if it is admitted, and what leaves the last is gone. A request's blocks hit
as far as an unbroken prefix of them is somewhere; what stands behind a miss is put in, or used, all the same.
Room is made when a request is over, and it was told whether its session is; what it has left may go as
anything else: so a capacity is of what is cached, and what a request that runs needs comes on top of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bench.traces import Request, Trace
from kvstore.core.errors import check
from kvstore.core.ports import AdmissionPolicy, EvictionPolicy, KeyHashes, Use
from kvstore.core.types import Rows, Tier

__all__ = ["Counts", "Hints", "hashes_of", "replay"]

NOWHERE = -1
# By request: sessions that are told to be over when it has been served, each as the blocks of its last
# prompt.
Hints = dict[int, list[NDArray[np.int64]]]


@dataclass(slots=True)
class Counts:
    """In blocks. By tier: `hits` of requests, `put` in from the tier above or by a request."""

    reads: int = 0
    hits: list[int] = field(default_factory=lambda: [0] * len(Tier))
    put: list[int] = field(default_factory=lambda: [0] * len(Tier))

    @property
    def hit_rate(self) -> float:
        return sum(self.hits) / self.reads if self.reads else 0.0


def replay(
    trace: Trace,
    policy: EvictionPolicy,
    capacities: Sequence[int],
    *,
    admission: AdmissionPolicy | None = None,
    hints: Hints | None = None,
) -> Counts:
    """`capacities` in blocks, of one to three tiers. The policy is new."""
    tiers = _Tiers(trace, policy, capacities, admission)
    for index, request in enumerate(trace.requests):
        tiers.serve(request)
        for blocks in (hints or {}).get(index, ()):
            tiers.retire(blocks)
        tiers.make_room()
    return tiers.counts


def hashes_of(blocks: NDArray[np.int64]) -> KeyHashes:
    """Of ids, as good as those of keys would be (the finishing steps of splitmix64)."""
    hashes = blocks.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: KeyHashes = hashes ^ (hashes >> np.uint64(31))
    return mixed


class _Tiers:
    def __init__(
        self,
        trace: Trace,
        policy: EvictionPolicy,
        capacities: Sequence[int],
        admission: AdmissionPolicy | None,
    ) -> None:
        self.counts = Counts()
        self._policy, self._admission = policy, admission
        self._tiers = tuple(Tier)[: len(capacities)]
        self._capacity = tuple(capacities)
        largest = max((request.blocks.size for request in trace.requests), default=0)
        row_count = sum(capacities) + 2 * largest
        policy.begin(row_count)
        self._free = list(range(row_count - 1, -1, -1))
        self._used = [0 for _ in capacities]
        # By id of a block: its row, or NOWHERE. By row: its tier, and the id of its block.
        self._row = np.full(trace.block_count, NOWHERE, np.intp)
        self._tier = np.full(row_count, NOWHERE, np.int8)
        self._block = np.zeros(row_count, np.int64)

    def serve(self, request: Request) -> None:
        counts, gpu = self.counts, self._tiers[0]
        counts.reads += request.blocks.size
        blocks = request.blocks
        rows = self._row[blocks]
        missing = rows == NOWHERE
        any_missing = bool(missing.any())
        found = int(missing.argmax()) if any_missing else rows.size
        present = rows[~missing] if any_missing else rows
        lacking = rows.size
        for tier in self._tiers:
            here = self._tier[present] == tier
            counts.hits[tier] += int(np.count_nonzero(here[:found]))
            leaving = present[here]
            self._policy.forget(tier, leaving)
            if tier is gpu:
                lacking -= leaving.size
            else:
                self._used[tier] -= leaving.size
        counts.put[gpu] += lacking
        self._used[gpu] += lacking
        if any_missing:
            fresh = self._free[-int(np.count_nonzero(missing)) :]
            del self._free[-len(fresh) :]
            rows[missing] = fresh
            self._row[blocks], self._block[rows] = rows, blocks
        self._tier[rows] = gpu
        use = Use(
            time=request.time,
            rows=rows,
            hashes=hashes_of(blocks),
            found=found,
            prompt_tokens=request.prompt_tokens,
            answer_tokens=request.answer_tokens,
        )
        self._policy.use(use)
        self._policy.touch(gpu, rows[::-1])

    def retire(self, blocks: NDArray[np.int64]) -> None:
        rows = self._row[blocks[::-1]]
        self._policy.retire(rows[rows != NOWHERE])

    def make_room(self) -> None:
        """After a request is over, and what is known of its session is told."""
        self._make_room(self._tiers[0])

    def _make_room(self, tier: Tier) -> None:
        short = self._used[tier] - self._capacity[tier]
        if short <= 0:
            return
        victims = self._policy.victims(tier, short, lambda rows: rows)
        check(victims.size == short, "the policy has lost blocks")
        self._policy.evicted(tier, victims)
        self._used[tier] -= short
        is_lowest = tier is self._tiers[-1]
        gone = victims if is_lowest else self._demote(tier, self._tiers[tier + 1], victims)
        # What goes down is there before it is not here any more, as in the store.
        self._policy.forget(tier, victims)
        self._tier[gone], self._row[self._block[gone]] = NOWHERE, NOWHERE
        self._free += gone.tolist()

    def _demote(self, source: Tier, target: Tier, rows: Rows) -> Rows:
        """What is admitted goes to the tier below. Returns what is not."""
        admitted = np.ones(rows.size, np.bool_)
        if self._admission is not None:
            (admitted,) = self._admission.admits([target], rows)
        going = rows[admitted]
        self._used[target] += going.size
        self.counts.put[target] += going.size
        self._tier[going] = target
        self._policy.touch(target, going)
        self._make_room(target)
        return rows[~admitted]
