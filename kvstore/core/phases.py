"""The operations of a step by kind: a step is checked and applied one kind after the other."""

from collections.abc import Sequence as Many
from typing import Any, TypeVar

from kvstore.core.operations import (
    Allocate,
    Commit,
    EndSession,
    Fork,
    Free,
    Grow,
    Operation,
    Swap,
    UpdateActivity,
)

__all__ = ["PHASES", "K", "Phases", "Placed"]

# The order in which a step is applied; swaps IN come last of all.
PHASES: tuple[type[Operation], ...] = (Commit, Fork, Free, UpdateActivity, EndSession, Swap, Grow, Allocate)

K = TypeVar("K", Allocate, Commit, EndSession, Fork, Free, Grow, Swap, UpdateActivity)
Placed = list[tuple[int, K]]


class Phases:
    """Each operation with its place in the step, sorted once."""

    def __init__(self, operations: Many[Operation]) -> None:
        self.count = len(operations)
        self._of_kind: dict[type, list[Any]] = {}
        for placed in enumerate(operations):
            kind = type(placed[1])
            if kind in self._of_kind:
                self._of_kind[kind].append(placed)
            else:
                self._of_kind[kind] = [placed]

    @property
    def kinds(self) -> Many[type]:
        """Those that there are, in the order in which they are applied."""
        if len(self._of_kind) < 2:
            return [*self._of_kind]
        return [kind for kind in PHASES if kind in self._of_kind]

    def of(self, kind: type[K]) -> "Placed[K]":
        return self._of_kind.get(kind, [])
