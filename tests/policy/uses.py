"""Uses of blocks told to a policy, by rows and by keys that are plain numbers."""

import numpy as np

from bench.replay import hashes_of
from kvstore.core.ports import Use
from kvstore.core.types import GPU
from kvstore.policy.worth import Worth

__all__ = ["rows_of", "use"]


def rows_of(*rows: int) -> np.ndarray:
    return np.array(rows, np.intp)


def use(policy: Worth, time: float, rows: np.ndarray, keys: np.ndarray, found: int = 0) -> None:
    policy.use(Use(time=time, rows=rows, hashes=hashes_of(keys), found=found, prompt_tokens=512 * rows.size))
    policy.touch(GPU, rows[::-1])
