"""Who comes in where nobody may be pushed out: only who has room for all that it may ever need."""

from collections.abc import Iterable
from typing import Any

import pytest

from engine.kv.frames import FrameTables
from engine.kv.granting import answer_step
from engine.requests import Request, Stream, StreamState
from engine.scheduler import Scheduler
from engine.scheduling.promises import Promises
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.talk import BLOCK_TOKENS, Talk, kinds, moved, pressed


class Promising(Talk):
    """A scheduler that promises, over frames of its own."""

    def __init__(self, frames: int, *, shares: bool = False) -> None:
        super().__init__()
        self.frames = FrameTables(frames)
        self.promises = Promises(BLOCK_TOKENS, shares=shares)
        self.promises.frame_count = frames
        self.scheduler = Scheduler(BLOCK_TOKENS, promises=self.promises)

    @property
    def free(self) -> int:
        return self.promises.free_blocks(self.scheduler.holding, self.tables)

    def go(self, events: Iterable[pb.Event] = ()) -> list[str]:
        """One step; returns the kinds of its operations."""
        asked = self.scheduler.operations(self.tables, self.now)
        response = answer_step(self.frames, asked, BLOCK_TOKENS)
        response.events.events.extend(events)
        self.tables.apply(asked, response)
        self.scheduler.take(asked, response)
        return kinds(asked)


def request(prompt: int, answer: int, **how: Any) -> Request:
    return Request(id="r", prompt=(1,) * prompt, max_new_tokens=answer, **how)


@pytest.mark.parametrize(
    ("asked", "shares", "blocks"),
    [
        # The last token of an answer is not fed to the model.
        (request(16, 1), False, 1),
        (request(16, 2), False, 2),
        (request(30, 40), False, 5),
        # Each answer by itself, or the prompt's full blocks once.
        (request(33, 16, samples=3), False, 9),
        (request(33, 16, samples=3), True, 3 + 1 + 1),
        (request(33, 16, samples=2, beams=4), True, 3 + 3),
    ],
)
def test_what_a_request_may_need(asked, shares, blocks):
    assert Promises(BLOCK_TOKENS, shares=shares).blocks_of(asked) == blocks


def test_who_might_need_more_than_is_left_waits_until_somebody_has_ended():
    talk = Promising(10)
    # Two of five blocks each, of which they take two at first; the third would fit for now.
    streams = [talk.submit(30, first=100 * place, answer=40) for place in range(3)]
    assert talk.go() == ["allocate"]
    talk.run()
    assert talk.go() == ["commit", "allocate"]
    assert (talk.free, talk.frames.free_count) == (0, 6)
    while not any(each.is_done for each in streams):
        talk.run()
        if not any(each.is_done for each in streams):
            assert "allocate" not in talk.go()
    assert talk.go()[-1] == "allocate"
    while talk.scheduler.has_work:
        talk.run()
        talk.go()
    assert all(len(each.answer) == 40 for each in streams)
    assert talk.frames.free_count == 10


def test_a_smaller_one_does_not_overtake_who_waits_for_room():
    talk = Promising(10)
    talk.submit(30, answer=40)
    talk.go()
    talk.run()
    large, small = talk.submit(90, first=100, answer=40), talk.submit(10, first=300, answer=2)
    talk.go()
    assert [large.state, small.state] == [StreamState.QUEUED] * 2
    talk.scheduler.cancel(large, "the test")
    talk.go()
    assert small.state is StreamState.RUNNING


def test_nobody_is_pushed_out_by_want_or_pressure_or_priority():
    talk = Promising(6)
    low = talk.submit(30, answer=40)
    talk.go()
    # Somebody else takes what was promised.
    assert talk.frames.grow(99, 4)
    talk.submit(30, first=100, answer=40, priority=8)
    for _ in range(40):
        talk.run()
        assert "swap_out" not in talk.go([pressed(pb.PRESSURE_HIGH)])
    # It waits for the room that it lacks, and goes on.
    assert (low.state, len(low.tokens), talk.scheduler.preemptions) == (StreamState.RUNNING, 33, 0)
    talk.frames.free(99)
    talk.go()
    talk.run()
    assert len(low.tokens) == 34


def test_what_several_share_is_counted_once_and_a_shared_last_block_as_one_to_come():
    talk = Promising(100, shares=True)
    one, other = talk.submit(60, answer=20), talk.submit(60, first=500, answer=20)
    talk.go()
    assert talk.free == 100 - 2 * 5

    def put(stream: Stream, table: list[int], room: int) -> None:
        talk.tables.apply_events([moved(stream.sequence, pb.Sequence.RESIDENT, table)])
        stream.room = room

    put(one, [0, 1, 2, 3], 64)
    put(other, [0, 1, 2, 9], 64)
    # Five frames, and one to come for each.
    assert talk.free == 100 - 5 - 2
    put(other, [0, 1, 2, 3], 60)
    assert talk.free == 100 - 4 - (1 + 2)


def test_of_those_with_a_prompt_to_compute_one_at_a_time_has_memory():
    talk = Promising(100)
    long, single = talk.submit(300, answer=9), talk.submit(1, first=500)
    short, last = talk.submit(30, first=400, answer=9), talk.submit(1, first=600)
    states = []
    for _ in range(4):
        talk.go()
        states.append([each.state is StreamState.RUNNING for each in (long, single, short, last)])
        talk.run()
    # The long one takes two passes; a single token is decoded beside it, but doesn't overtake a prompt.
    assert states == [[True, True, False, False]] * 2 + [[True] * 4] * 2


@pytest.mark.parametrize("shares", [False, True])
def test_samples_are_promised_their_room_before_and_after_they_part(shares):
    talk = Promising(40, shares=shares)
    asked = request(33, 16, samples=3)
    leader = talk.scheduler.submit(asked)
    talk.go()
    assert talk.free == 40 - talk.promises.blocks_of(asked)
    talk.run()
    talk.scheduler.fork(leader)
    # The children are numbered with the step that forks them, and count from then on.
    waiting = talk.submit(400, first=900, answer=400)
    talk.go()
    assert waiting.state is StreamState.QUEUED
    held = {frame for each in talk.scheduler.holding for frame in talk.tables.table(each.sequence)}
    assert len(talk.scheduler.holding) == 3
    assert len(held) == 9
    assert talk.free <= 40 - 9


def test_a_load_that_has_failed_comes_back_only_with_room_for_all():
    talk = Promising(10)
    stream = talk.submit(30, answer=40)
    talk.go()
    stream.state = StreamState.PREEMPTED
    talk.tables.apply_events([moved(stream.sequence, pb.Sequence.DROPPED)])
    talk.promises.frame_count = 4
    stream.computed = 0
    assert kinds(talk.scheduler.operations(talk.tables, 1.0)) == []
    talk.promises.frame_count = 5
    assert kinds(talk.scheduler.operations(talk.tables, 1.0)) == ["swap_in"]
