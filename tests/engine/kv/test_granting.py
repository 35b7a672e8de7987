"""A step's operations answered out of the engine's own frames, as the client's tables take them in."""

from collections.abc import Sequence

import pytest

from engine.kv.frames import FrameTables
from engine.kv.granting import answer_step
from kvstore.client import BlockTables, operations
from kvstore.v1 import kvstore_pb2 as pb

BLOCK_TOKENS = 16


class Own:
    """Frames, and the tables that an engine has of them."""

    def __init__(self, frames: int) -> None:
        self.frames = FrameTables(frames)
        self.tables = BlockTables(BLOCK_TOKENS)

    def step(self, *asked: pb.Operation) -> pb.StepResponse:
        response = answer_step(self.frames, asked, BLOCK_TOKENS)
        self.tables.apply(asked, response)
        return response

    def assert_agrees(self, *sequences: int) -> None:
        for each in sequences:
            assert self.tables.table(each) == list(self.frames.table(each))

    def copies(self, response: pb.StepResponse) -> dict[int, int]:
        return {copy.target: copy.source for copy in response.copies}


def outcomes(response: pb.StepResponse) -> Sequence[int]:
    return [result.allocate.outcome for result in response.results]


def test_a_sequence_takes_its_room_grows_and_gives_all_of_it_back():
    own = Own(4)
    own.step(operations.allocate(1, 20))
    assert own.tables.state(1) == pb.Sequence.RESIDENT
    own.step(operations.grow([1], [48], [2]), operations.commit(1, 0, [b"k" * 32]))
    own.assert_agrees(1)
    assert own.frames.free_count == 1
    own.step(operations.free([1]))
    assert own.frames.free_count == 4
    assert 1 not in own.tables


def test_all_or_nothing_and_what_is_freed_is_there_in_the_same_step():
    own = Own(4)
    own.step(operations.allocate(1, 40))
    late = own.step(operations.allocate(2, 32))
    assert (outcomes(late), late.results[0].allocate.frames_short) == ([pb.OUTCOME_LATER], 1)
    assert own.tables.state(2) == pb.Sequence.DROPPED
    assert outcomes(own.step(operations.allocate(3, 80))) == [pb.OUTCOME_NEVER]
    taken = own.step(operations.allocate(2, 32), operations.free([1]))
    assert outcomes(taken)[:1] == [pb.OUTCOME_OK]
    own.assert_agrees(2)


def test_of_a_grow_each_is_answered_by_itself():
    own = Own(4)
    own.step(operations.allocate(1, 16), operations.allocate(2, 16))
    response = own.step(operations.grow([1, 2], [64, 32], [1, 1]))
    grow = response.results[0].grow
    assert list(grow.frame_counts) == [0, 1]
    [other] = grow.others
    assert (other.place, other.result.outcome, other.result.frames_short) == (0, pb.OUTCOME_LATER, 1)
    own.assert_agrees(1, 2)


def test_a_fork_is_a_copy_into_frames_of_its_own():
    own = Own(6)
    own.step(operations.allocate(1, 20))
    response = own.step(operations.fork(1, [2, 3]))
    own.assert_agrees(1, 2, 3)
    parent = own.tables.table(1)
    assert own.copies(response) == {
        target: source
        for child in (2, 3)
        for source, target in zip(parent, own.tables.table(child), strict=True)
    }
    assert own.frames.free_count == 0


def test_where_the_parent_ends_one_child_takes_its_frames_over():
    own = Own(4)
    own.step(operations.allocate(1, 20))
    parent = list(own.tables.table(1))
    response = own.step(operations.fork(1, [2, 3]), operations.free([1]))
    own.assert_agrees(2, 3)
    assert own.tables.table(2) == parent
    assert own.copies(response) == dict(zip(own.tables.table(3), parent, strict=True))
    assert 1 not in own.frames


def test_a_fork_takes_what_others_free_in_the_same_step_and_without_room_is_told_so():
    own = Own(4)
    own.step(operations.allocate(1, 20), operations.allocate(2, 20))
    response = own.step(operations.fork(1, [3]), operations.free([2]))
    assert response.results[0].fork.outcome == pb.OUTCOME_OK
    own.assert_agrees(1, 3)
    response = own.step(operations.fork(3, [4]))
    assert response.results[0].fork.outcome == pb.OUTCOME_LATER
    assert 4 not in own.tables
    assert own.copies(response) == {}


def test_nobody_is_swapped_out():
    own = Own(4)
    own.step(operations.allocate(1, 20))
    with pytest.raises(ValueError, match="nowhere to swap to"):
        own.step(operations.swap_out(1, 20))
