"""Slots: neighbours together, the lowest first, none twice."""

import random

import numpy as np
import pytest

from kvstore.core.errors import CheckFailed
from kvstore.tiers.slots import Slots


def slots(capacity: int = 100, segment: int = 20, used: tuple[int, ...] = ()) -> Slots:
    made = Slots(capacity, segment)
    for first in range(0, capacity, segment):
        own = [slot for slot in used if first <= slot < first + segment]
        made.add(first, np.array(own, np.intp), min(first + segment, capacity))
    return made


def test_the_lowest_are_taken_first_and_in_a_row():
    made = slots()
    assert made.take(5, 4) == [0, 1, 2, 3, 4]
    assert made.take(30, 4) == list(range(5, 35))
    made.give([0, 1])
    assert made.take(3, 4) == [35, 36, 37], "a run, rather than what is lowest"
    assert made.take(2, 4) == [0, 1]


def test_where_there_are_no_runs_shorter_ones_are_taken():
    made = slots(used=tuple(range(0, 100, 2)))
    assert made.take(6, 4) == [1, 3, 5, 7, 9, 11]
    made.give([0, 2, 40])
    assert made.take(4, 2) == [40, 41, 43, 45], "no run reaches over the end of a segment"


def test_a_batch_without_runs_lies_in_few_segments():
    """Each costs a sync: that one is taken which has most of what is wanted, its longest runs first."""
    made = slots(used=tuple(range(100)))
    made.give([3, 25, 41, 44, 45, 47, 61, 81])
    assert made.take(3, 8) == [41, 44, 45]
    made.give([44])
    assert made.take(3, 8) == [3, 44, 47]
    assert made.take(3, 8) == [25, 61, 81]


def test_a_segment_shorter_than_the_others():
    made = slots(capacity=45)
    assert made.take(45, 8) == list(range(45))
    assert made.free_count == 0
    made.give([44, 43])
    assert made.take(2, 8) == [43, 44]


def test_only_what_is_there_is_free():
    made = Slots(60, 20)
    assert made.free_count == 0
    made.add(20, np.array([25], np.intp), 40)
    assert made.free_count == made.made_count - 1 == 19
    assert made.take(19, 4) == [*range(20, 25), *range(26, 40)]
    with pytest.raises(CheckFailed):
        made.take(1, 1)


def test_given_back_twice_is_a_bug():
    made = slots()
    taken = made.take(2, 1)
    made.give(taken)
    with pytest.raises(CheckFailed, match="is free"):
        made.give(taken[:1])


@pytest.mark.parametrize("seed", range(5))
def test_none_is_handed_out_twice(seed):
    draw = random.Random(seed)
    capacity = draw.randrange(50, 200)
    made = slots(capacity, draw.choice([1, 7, 20, 300]))
    held: set[int] = set()
    for _ in range(300):
        count = draw.randrange(1, 20)
        if made.free_count >= count and draw.random() < 0.6:
            taken = made.take(count, draw.choice([1, 2, 8]))
            assert len(taken) == count
            assert taken == sorted(taken)
            assert not held & set(taken)
            held |= set(taken)
        elif held:
            back = draw.sample(sorted(held), min(len(held), count))
            made.give(back)
            held -= set(back)
        assert made.free_count == capacity - len(held)
    assert max(held, default=0) < capacity
