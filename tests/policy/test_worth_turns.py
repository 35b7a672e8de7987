"""Worth counts the turns of a chat; a prompt that is asked again and again goes on from itself for ever."""

import numpy as np

from kvstore.core.ports import Use
from kvstore.policy.worth import Worth

# More than 16 bits hold with a sign.
TIMES = 33_000


def test_a_prompt_may_be_asked_any_number_of_times() -> None:
    """As a probe of health does, which says the same each second."""
    policy, rows = Worth(), np.arange(3)
    policy.begin(rows.size)
    for time in range(TIMES):
        hashes = np.array([11, 22, 33], np.uint64)
        policy.use(Use(time=float(time), rows=rows, hashes=hashes, found=3 if time else 0))
    assert (policy.worth(rows) > 0).all()
