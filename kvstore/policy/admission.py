"""What is worth a write to the tier below: what is likely enough to be read again.

    write b  iff  P(b is read again) >= reads a write has to bring

P is learned by kind and age (`returns.py`). Of a service that has begun minutes ago only what came back at
once can be known, and P is far too low: until uses have been watched for a while, all that may come back is
admitted. What is seldom read again, as the last block of a prompt, takes no write and no room below; what
belongs to a session that is over, none at all. A parent is admitted if a child is, or was.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvstore.core.errors import check
from kvstore.core.ports import Figures
from kvstore.core.types import GPU, Rows, Tier
from kvstore.policy.worth import Worth

__all__ = ["WATCHED_SECONDS", "AdmitByChance"]

# For how long uses are watched before a write is refused for a low chance.
WATCHED_SECONDS = 600.0
# Below any chance but that of what is told to be over, which is 0.
ANY_CHANCE = 1e-6


class AdmitByChance:
    """`reads_per_write`: by tier what a write there has to be expected to bring, 0 to 1; 0 admits all.
    `turn_reads_per_write`: the same for the disk, of what a session owns and has kept in the CPU tier so far.
    """

    def __init__(
        self, worth: Worth, reads_per_write: dict[Tier, float], turn_reads_per_write: float = 0.0
    ) -> None:
        self._worth = worth
        self._reads_per_write = reads_per_write
        self._turn_reads_per_write = turn_reads_per_write

    def admits(self, targets: Sequence[Tier], rows: Rows) -> list[NDArray[np.bool_]]:
        check(GPU not in targets, "nothing is written to the tier on top")
        return self._admits(rows, [self._reads_per_write.get(target, 0.0) for target in targets])

    def admits_turns(self, rows: Rows) -> NDArray[np.bool_]:
        return self._admits(rows, [self._turn_reads_per_write])[0]

    def told(self, target: Tier, rows: Rows, *, are_turns: bool = False) -> Figures:
        """The chance of each by itself: one that stands below it may have had what hangs on it admitted."""
        least = self._turn_reads_per_write if are_turns else self._reads_per_write.get(target, 0.0)
        with self._worth.looking():
            chances = self._worth.chance_with_children(rows)
        return (
            ("chance_least", float(chances.min(initial=1.0))),
            ("chance_most", float(chances.max(initial=0.0))),
            ("chance_wanted", least),
            ("watched_seconds", self._worth.watched_seconds),
            ("watched_seconds_wanted", WATCHED_SECONDS),
        )

    def _admits(self, rows: Rows, least: list[float]) -> list[NDArray[np.bool_]]:
        """For each chance that is asked for, one after the other: a parent goes where its child went."""
        if max(least) <= 0.0:
            return [np.ones(rows.size, np.bool_) for _ in least]
        most = ANY_CHANCE if self._worth.watched_seconds < WATCHED_SECONDS else math.inf
        chances, chains = self._worth.chance_with_children(rows), self._worth.chains
        return [
            chains.keep(rows, chances >= min(chance, most)) if chance > 0.0 else np.ones(rows.size, np.bool_)
            for chance in least
        ]
