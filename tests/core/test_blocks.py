"""The table of blocks by itself: what repeated rows and rows given back come to."""

import numpy as np

from kvstore.core.blocks import Blocks


def test_a_row_that_was_given_back_can_be_told_from_the_one_before() -> None:
    blocks = Blocks(4)
    first = blocks.take_rows(3)
    before = blocks.generation[first].tolist()
    blocks.give_rows(first[:2])
    again = blocks.take_rows(3)
    assert set(first[:2].tolist()) < set(again.tolist())
    assert blocks.generation[first].tolist() == [before[0] + 1, before[1] + 1, before[2]]


def test_rows_that_repeat_count_as_often_as_they_do() -> None:
    blocks = Blocks(4)
    rows = np.array([2, 1, 2, 2], np.intp)
    blocks.hold(rows)
    blocks.give_up(rows[1:])
    assert (blocks.refs.tolist(), blocks.limbo.tolist()) == ([0, 1, 3, 0], [0, 1, 2, 0])
    blocks.take_back(rows[1:2])
    blocks.leave_limbo(rows[2:])
    blocks.release(rows[:1])
    assert (blocks.refs.tolist(), blocks.limbo.tolist()) == ([0, 1, 0, 0], [0, 0, 0, 0])
    assert blocks.distinct(rows).tolist() == [2, 1]
