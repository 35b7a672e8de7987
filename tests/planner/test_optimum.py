"""The optimum, against all that could have been kept."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.planner.optimum import Use, best_hits

# A tree of blocks: each request reads a path from the root. Numbers are those of a heap.
PATHS = [(1,), (1, 2), (1, 3), (1, 2, 4), (1, 2, 5), (1, 3, 6), (7,), (7, 14)]


def brute_force(uses: list[Use], capacity: int) -> int:
    """Every set that could be kept after each request, of what was there or was computed."""
    best = {frozenset[int](): 0}
    for use in uses:
        following: dict[frozenset[int], int] = {}
        for kept, hits in best.items():
            found = 0
            while found < len(use.read) and use.read[found] in kept:
                found += 1
            known = kept | set(use.read) | set(use.left)
            for count in range(min(capacity, len(known)) + 1):
                for chosen in combinations(sorted(known), count):
                    each = frozenset(chosen)
                    following[each] = max(following.get(each, 0), hits + found)
        best = following
    return max(best.values())


@given(
    st.lists(st.tuples(st.sampled_from(PATHS), st.booleans()), min_size=1, max_size=7),
    st.integers(min_value=0, max_value=4),
)
def test_nothing_is_better(drawn, capacity):
    # Some read all but their last block, and leave that: an answer, or a block that a token must be computed
    # of.
    uses = [Use(path[:-1], path[-1:]) if leaves else Use(path) for path, leaves in drawn]
    assert best_hits(uses, capacity) == brute_force(uses, capacity)


@pytest.mark.parametrize(
    ("uses", "capacity", "hits"),
    [
        # What is not read again takes no room.
        ([(1,), (2,), (3,), (1,)], 1, 1),
        ([(1,), (2,), (1,), (2,)], 1, 1),
        ([(1,), (2,), (1,), (2,)], 2, 2),
        # The head of a chain is worth more than its tail.
        ([(1, 2, 3), (1, 2, 3)], 2, 2),
        ([(1, 2), (1, 2)], 0, 0),
    ],
)
def test_by_hand(uses, capacity, hits):
    assert best_hits([Use(read) for read in uses], capacity) == hits


def test_what_comes_for_nothing_is_not_kept_for_it():
    uses = [Use((1, 3)), Use((7,)), Use((7,)), Use((), (1,)), Use((1, 3))]
    assert best_hits(uses, 2) == brute_force(uses, 2) == 3


def test_an_answer_is_found_by_the_next_prompt():
    assert best_hits([Use((1,), (2,)), Use((1, 2, 3))], 2) == 2
    assert best_hits([Use((1,)), Use((1, 2, 3))], 2) == 1
