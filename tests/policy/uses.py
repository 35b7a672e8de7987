"""Uses of blocks told to a policy, by rows and by keys that are plain numbers."""

import numpy as np

from bench.replay import hashes_of
from kvstore.core.ports import Use
from kvstore.core.types import GPU
from kvstore.policy.kinds import CHILDREN_MAX, Kinds, Request
from kvstore.policy.returns import Returns
from kvstore.policy.worth import Worth

__all__ = ["kinds_of", "learn", "rows_of", "use"]


def rows_of(*rows: int) -> np.ndarray:
    return np.array(rows, np.intp)


def use(policy: Worth, time: float, rows: np.ndarray, keys: np.ndarray, found: int = 0) -> None:
    policy.use(time, [Use(rows=rows, hashes=hashes_of(keys), found=found, prompt_tokens=512 * rows.size)])
    policy.touch(GPU, rows[::-1])


def kinds_of(
    kinds: Kinds, request: Request, uses: np.ndarray, gaps: np.ndarray, children: np.ndarray
) -> np.ndarray:
    """Of the blocks of a request, head first; made where there were none like them."""
    depths, branches = np.arange(uses.size), np.minimum(children, CHILDREN_MAX)
    places = kinds.places(uses, gaps, branches, depths, depths[::-1])
    return kinds.make(request, kinds.number(request), places)


def learn(returns: Returns, time: float, kinds: np.ndarray) -> None:
    """Of the use of one chain."""
    returns.used(time, kinds, [kinds.size])
    returns.learn()
