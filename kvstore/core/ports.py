"""What the core asks of a policy. A policy is asked and never acts: it returns rows or a choice."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvstore.core.types import Rows, Tier

__all__ = ["AdmissionPolicy", "EvictionPolicy", "KeyHashes", "RowSource", "SwapPolicy", "Use"]

# By block, a hash of its key that is the same whenever the block comes again, in whatever row; of all tenants
# and namespaces, so they go into it. Eight bytes: two blocks of one hash spoil a statistic and no more.
KeyHashes = NDArray[np.uint64]

# Of the given rows, in their order, those that can go, each after its children.
RowSource = Callable[[Rows], Rows]


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


class EvictionPolicy(Protocol):
    """Orders the cached blocks of each tier by what they are worth. Rows are named once a call.

    Who uses blocks tells it first (`use`), then where they lie (`touch`, for each tier). Blocks that are
    touched without a use, as those that were copied or restored, are as they were at their last use.
    """

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
        """The session that was the last to use these blocks is over. Blocks that others have used as well
        may be among them: whether they stay of worth is the policy's to say."""

    def favour(self, rows: Rows, priorities: NDArray[np.int32]) -> None:
        """These blocks go after all others, in every tier, of lower priority first; given as for `touch`."""

    def unfavour(self, rows: Rows) -> None:
        """These go as all others do, as if they were used now; given as for `touch`."""

    def victims(self, tier: Tier, count: int, removable: RowSource) -> Rows:
        """`count` blocks of the least worth out of those that are removable, a child before its
        parent; fewer, if there are not so many. Changes no order."""


class AdmissionPolicy(Protocol):
    """Whether what leaves a tier is worth being written to the one below."""

    def admits(self, target: Tier, rows: Rows) -> NDArray[np.bool_]:
        """Of each block, given from tails to heads. What is not admitted is dropped where it leaves, and
        a block behind one that is dropped is of no use: so a chain is admitted from its head on."""


class SwapPolicy(Protocol):
    """Whether a sequence that has to leave the GPU is swapped out or dropped."""

    def keeps(self, token_count: int) -> bool:
        """True: swap it out. False: drop it, to be computed again."""

    def inputs(self, token_count: int) -> tuple[tuple[str, float], ...]:
        """The figures that `keeps` rested on, by name."""
