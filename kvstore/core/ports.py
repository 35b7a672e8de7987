"""What the core asks of a policy. A policy is asked and never acts: it returns rows or a choice."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvstore.core.types import LinkCost, Rows, StepTiming, Tier

__all__ = [
    "AdmissionPolicy",
    "Departure",
    "EvictionPolicy",
    "Figures",
    "KeyHashes",
    "LinkState",
    "Restore",
    "RowSource",
    "SwapPolicy",
    "TierRun",
    "Use",
    "Verdict",
]

# By block, a hash of its key that is the same whenever the block comes again, in whatever row; of all tenants
# and namespaces, so they go into it. Eight bytes: two blocks of one hash spoil a statistic and no more.
KeyHashes = NDArray[np.uint64]

# Of the given rows, in their order, those that can go, each after its children.
RowSource = Callable[[Rows], Rows]

# By name: what a choice rested on.
Figures = tuple[tuple[str, float], ...]


class Use(Struct, frozen=True, kw_only=True):
    """What one request did with the blocks of its prompt. What is not known of it is left out: each field
    helps where it is there, and none but the first four is needed."""

    # Seconds on any clock that doesn't go back; ages are counted from it to the time of the latest use.
    time: float
    # The chain, from its head to its tail, each row with the hash of its key. The first `found` of them were
    # there; what stands behind is new, or was found behind a block that was not.
    rows: Rows
    hashes: KeyHashes
    found: int
    prompt_tokens: int = 0
    answer_tokens: int = 0
    # Turns of its session before this one, where an engine numbers them; 0: the first, or it does not.
    session_turn: int = 0


class EvictionPolicy(Protocol):
    """Orders the cached blocks of each tier by what they are worth. Rows are named once a call.

    Who uses blocks tells it first (`use`), then where they lie (`touch`, for each tier). Blocks that are
    touched without a use, as those that were copied or restored, are as they were at their last use.
    """

    # Whether it is to be told of uses.
    learns: bool

    def begin(self, capacity: int) -> None:
        """Before all else, once: rows are numbers below `capacity`."""

    def use(self, use: Use) -> None:
        """A request uses these blocks, whichever tiers they are in. Rows may be others' from before: what a
        policy knows of a block that was evicted it knows by the hash of its key."""

    def touch(self, tier: Tier, rows: Rows) -> None:
        """These blocks were used; given from the tail of their chain to its head."""

    def forget(self, tier: Tier, rows: Rows) -> None:
        """These blocks have left the tier, or can't be given up just now."""

    def evicted(self, tier: Tier, rows: Rows) -> None:
        """These blocks of the tier go to make room; told before `forget`, which is also told of all else."""

    def retire(self, rows: Rows) -> None:
        """Nobody goes on from these blocks, which are cached: the session that used them last is over, or
        what a request has left is thrown away. Who does not know what others have used may name such blocks
        as well: whether they stay of worth is the policy's to say. From tails to heads; only one that
        `learns` is told."""

    def favour(self, rows: Rows, priorities: NDArray[np.int32]) -> None:
        """These blocks go after all others, in every tier, of lower priority first; given as for `touch`."""

    def unfavour(self, rows: Rows) -> None:
        """These go as all others do, as if they were used now; given as for `touch`."""

    def victims(self, tier: Tier, count: int, removable: RowSource) -> Rows:
        """`count` blocks of the least worth out of those that are removable, a child before its
        parent; fewer, if there are not so many. Changes no order."""

    def told(self, tier: Tier, rows: Rows) -> Figures:
        """For who asks why, of blocks that `victims` has just named and that have gone since: what each was
        worth, and what the next is that stays. Nothing, where no worth is reckoned. Changes nothing."""

    def looking(self) -> AbstractContextManager[None]:
        """What is asked within changes nothing of what is answered later: for who looks, and evicts nothing.
        So a run in which somebody has looked comes out as one in which nobody has."""


class AdmissionPolicy(Protocol):
    """Whether a block that a request has left as cache, and no session owns, is worth a copy further down.

    What a session owns is copied to the CPU tier without being asked for, and to disk as well, unless the
    store judges turns (`judging.py`).
    """

    def admits(self, targets: Sequence[Tier], rows: Rows) -> list[NDArray[np.bool_]]:
        """To each of these tiers, of each block, given from tails to heads. A block behind one that is not
        there is of no use: so a chain is admitted from its head on."""

    def admits_turns(self, rows: Rows) -> NDArray[np.bool_]:
        """The same for the disk, of blocks that sessions own and that are about to leave the CPU tier."""

    def told(self, target: Tier, rows: Rows, *, are_turns: bool = False) -> Figures:
        """For who asks why: how likely these are thought to be read again, and how likely they have to be.
        Changes nothing."""


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
    was weighed), and on what it rests. `blocks`: how many of the head to keep or load; else all or none.
    Of a load: how many blocks it moves, and how many the best of the rest would; the same where there is no
    other way."""

    keeps: bool
    seconds: float = 0.0
    other_seconds: float = 0.0
    blocks: int = 0
    loads: int = 0
    other_loads: int = 0
    other_is_whole: bool = False
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
