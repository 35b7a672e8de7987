"""What the core asks of a policy. A policy is asked and never acts: it returns rows or a choice."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvstore.core.types import LinkCost, Rows, StepTiming, Tier

__all__ = [
    "Departure",
    "EvictionPolicy",
    "Figures",
    "LinkState",
    "Restore",
    "RowSource",
    "SwapPolicy",
    "TierRun",
    "Verdict",
]

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


# By name: what a choice rested on.
Figures = tuple[tuple[str, float], ...]
# Neighbouring blocks of a chain whose best copy is in one tier, and how many they are.
TierRun = tuple[Tier, int]


class LinkState(Struct, frozen=True, kw_only=True, gc=False):
    """A link as it stands: blocks that go before a new one of the same urgency, and the share of the last
    second in which it was at work for somebody."""

    blocks_ahead: int = 0
    busy_share: float = 0.0


class Departure(Struct, frozen=True, kw_only=True, gc=False):
    """A sequence that is to leave the GPU, and to come back.

    `tokens` have their KV written, of these the leading `tokens_kept` stay on the GPU, for others hold them.
    To swap it moves `blocks_out` down (none where the copies went ahead) and `blocks_in` up again.
    """

    time: float
    tokens: int
    tokens_kept: int = 0
    blocks_out: int = 0
    blocks_in: int = 0
    copy: LinkState = LinkState()
    load: LinkState = LinkState()
    # What was chosen for this sequence the last time; empty: it has not left yet.
    chosen_before: str = ""


class Restore(Struct, frozen=True, kw_only=True, gc=False):
    """A sequence that comes in, with content in some tiers: `runs` of its blocks from the head on, which
    hold `tokens` (the last block perhaps not full)."""

    time: float
    tokens: int
    block_tokens: int
    runs: tuple[TierRun, ...]
    load: LinkState = LinkState()
    read: LinkState = LinkState()


class Verdict(Struct, frozen=True, kw_only=True, gc=False):
    """What to do, what that costs and what the best of the rest would, in seconds as priced (both 0: nothing
    was weighed), and on what it rests. `blocks`: how many of the head to keep or load; else all or none."""

    keeps: bool
    seconds: float = 0.0
    other_seconds: float = 0.0
    blocks: int = 0
    reason: str = ""
    inputs: Figures = ()


class SwapPolicy(Protocol):
    """Drop or swap, and how much of what is below the GPU is worth loading.

    All that it knows it is told here, with events: so it decides the same when these are replayed.
    """

    def note_timings(self, timings: tuple[StepTiming, ...], time: float) -> None:
        """What an engine says of its steps."""

    def set_costs(self, block_bytes: int, links: tuple[LinkCost, ...]) -> None:
        """What moving blocks takes from now on, in the place of all that was told before."""

    def leave(self, departure: Departure) -> Verdict:
        """Whether to swap it out, or to drop it and have it computed again."""

    def load(self, restore: Restore) -> Verdict | None:
        """How many of the leading blocks to load, the rest to be computed; None: all, nothing was weighed."""

    def hold_seconds(self, departure: Departure, pressed_share: float) -> float:
        """How long one that is parked is worth its room on a GPU that is short of it for this share of the
        time; infinite: as long as nobody needs it."""
