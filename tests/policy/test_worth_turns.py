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


def test_a_turn_that_is_told_is_one_though_the_chain_does_not_say_so() -> None:
    """As where what an answer was thought of is left out of the next prompt. The first blocks are no other
    chat's for that: when the session is over, they are worth nothing."""
    for told in (False, True):
        policy = Worth()
        policy.begin(100)
        rows = np.arange(10)
        hashes = np.arange(1, 11, dtype=np.uint64)
        policy.use(Use(time=0.0, rows=rows, hashes=hashes, found=0))
        kept, fresh = rows[:6], np.arange(20, 24)
        chain, names = (
            np.concatenate([kept, fresh]),
            np.concatenate([hashes[:6], hashes[:4] + np.uint64(100)]),
        )
        policy.use(Use(time=50.0, rows=chain, hashes=names, found=6, session_turn=int(told)))
        policy.retire(chain[::-1])
        assert (policy.worth(fresh) == 0).all()
        assert (policy.worth(kept) == 0).all() == told
