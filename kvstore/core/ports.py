"""What the core asks of a policy. A policy is asked and never acts: it returns ids or a choice."""

from collections.abc import Callable, Sequence
from typing import Protocol

from kvstore.core.types import BlockRow, Tier

__all__ = ["EvictionPolicy", "RowSource", "SwapPolicy"]

# Of the given rows, in their order, those that can go, each after its children.
RowSource = Callable[[Sequence[BlockRow]], list[BlockRow]]


class EvictionPolicy(Protocol):
    """Orders the cached blocks of each tier by what they are worth."""

    def touch(self, tier: Tier, rows: Sequence[BlockRow]) -> None:
        """These blocks were used; given from the tail of their chain to its head."""

    def forget(self, tier: Tier, rows: Sequence[BlockRow]) -> None:
        """These blocks have left the tier."""

    def victims(self, tier: Tier, count: int, removable: RowSource) -> list[BlockRow]:
        """`count` blocks of the least worth out of those that are removable, a child before its
        parent; fewer, if there are not so many. Changes nothing."""


class SwapPolicy(Protocol):
    """Whether a sequence that has to leave the GPU is swapped out or dropped."""

    def keeps(self, token_count: int) -> bool:
        """True: swap it out. False: drop it, to be computed again."""

    def inputs(self, token_count: int) -> tuple[tuple[str, float], ...]:
        """The figures that `keeps` rested on, by name."""
