"""What the core asks of a policy. A policy is asked and never acts: it returns rows or a choice."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvstore.core.types import Rows, Tier

__all__ = ["EvictionPolicy", "RowSource", "SwapPolicy"]

# Of the given rows, in their order, those that can go, each after its children.
RowSource = Callable[[Rows], Rows]


class EvictionPolicy(Protocol):
    """Orders the cached blocks of each tier by what they are worth. Rows are named once a call."""

    def begin(self, capacity: int) -> None:
        """Before all else, once: rows are numbers below `capacity`."""

    def touch(self, tier: Tier, rows: Rows) -> None:
        """These blocks were used; given from the tail of their chain to its head."""

    def forget(self, tier: Tier, rows: Rows) -> None:
        """These blocks have left the tier, or can't be given up just now."""

    def favour(self, rows: Rows, priorities: NDArray[np.int32]) -> None:
        """These blocks go after all others, in every tier, of lower priority first; given as for `touch`."""

    def unfavour(self, rows: Rows) -> None:
        """These go as all others do, as if they were used now; given as for `touch`."""

    def victims(self, tier: Tier, count: int, removable: RowSource) -> Rows:
        """`count` blocks of the least worth out of those that are removable, a child before its
        parent; fewer, if there are not so many. Changes no order."""


class SwapPolicy(Protocol):
    """Whether a sequence that has to leave the GPU is swapped out or dropped."""

    def keeps(self, token_count: int) -> bool:
        """True: swap it out. False: drop it, to be computed again."""

    def inputs(self, token_count: int) -> tuple[tuple[str, float], ...]:
        """The figures that `keeps` rested on, by name."""
