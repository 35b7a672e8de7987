"""Answers that grow in pieces: what is asked for, and what comes of a piece that is not filled; reckoned by
hand, as in `test_swaps.py`."""

import msgspec
import numpy as np
import pytest

from kvstore.core.calls import Step
from kvstore.core.operations import Allocate, Commit, Grow
from kvstore.planner.plan import Outcome, Preemptions, Rules, play
from kvstore.planner.workload import load_workload
from tests.planner.made import BLOCK_TOKENS, ROUND, Made, machine, request, sizes

OPEN = Rules(closed=False)


def grown_by(tokens: int, made: Made, gpu: int, *, closed: bool = False) -> Outcome:
    profile = msgspec.structs.replace(ROUND, growth_tokens=tokens)
    return play(load_workload(made), machine(sizes(gpu), profile), Rules(closed=closed))


def asked_by(tokens: int, made: Made, monkeypatch: pytest.MonkeyPatch) -> list[Allocate | Grow | Commit]:
    """All that was asked for, and that was committed."""
    asked: list[Allocate | Grow | Commit] = []
    run = machine(sizes(gpu=20), msgspec.structs.replace(ROUND, growth_tokens=tokens))
    handle = run.handle

    def hear(event):
        if isinstance(event, Step):
            asked.extend(each for each in event.operations if isinstance(each, Allocate | Grow | Commit))
        return handle(event)

    monkeypatch.setattr(run, "handle", hear)
    play(load_workload(made), run, OPEN)
    return asked


@pytest.mark.parametrize(
    ("growth_tokens", "rooms", "commits"),
    [
        # Less than a block is a block.
        (1, [8, 12, 16, 20, 23], [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]),
        (8, [8, 16, 23], [(0, 1), (1, 1), (2, 2), (4, 1)]),
        # A piece is of whole blocks.
        (10, [12, 23], [(0, 1), (1, 2), (3, 2)]),
        # The last token of an answer is never written.
        (64, [23], [(0, 1), (1, 4)]),
    ],
)
def test_room_is_asked_for_by_pieces_and_the_end(growth_tokens, rooms, commits, monkeypatch):
    # Six tokens of prompt, of which the second block has room for two more; 18 of answer.
    asked = asked_by(growth_tokens, Made(request(0, [1, 2], tokens=6, output=18)), monkeypatch)
    allocate, *rest = [each for each in asked if isinstance(each, Allocate | Grow)]
    assert isinstance(allocate, Allocate)
    assert [allocate.token_count, *(each.token_counts[0] for each in rest if isinstance(each, Grow))] == rooms
    # All blocks that are full at the end of a piece are published at once.
    told = [(each.first_block, len(each.block_keys)) for each in asked if isinstance(each, Commit)]
    assert told == commits


def test_who_fills_his_piece_and_finds_no_room_makes_some():
    # Each has two blocks of six, and at second 8 the first gets the last two. At 12 the second has filled his
    # own and leaves. He comes back when the first has ended, at 16: of his two blocks the first is found, the
    # second computed again until 20, and eight tokens follow.
    outcome = grown_by(8, Made(request(0, [1], output=13), request(0, [2], output=13)), gpu=6)
    assert outcome.preemptions == Preemptions(count=1, swapped=0, dropped=1, dropped_for_room=0)
    assert outcome.first_token_seconds.tolist() == [4, 8]
    assert (outcome.prefill_seconds, outcome.prefill_seconds_again) == (12, 4)
    assert outcome.seconds == pytest.approx(28)


def test_what_was_written_of_a_piece_is_kept():
    # At second 8 the first wants two blocks more, and one is free. The second, who has written four of the
    # eight tokens that he has room for, leaves; the block that they fill is found when he comes back at 16.
    outcome = grown_by(8, Made(request(0, [1], output=13), request(0, [2], tokens=2, output=15)), gpu=5)
    assert outcome.preemptions.count == 1
    assert outcome.first_token_seconds.tolist() == [4, 6]
    assert (outcome.prefill_seconds, outcome.prefill_seconds_again) == (6, 0)
    assert outcome.seconds == pytest.approx(28)


def test_pieces_find_what_blocks_find():
    """Where there is room for some pieces more than run: to two hundredths of what is found."""
    draw = np.random.default_rng(7)
    made: list = []
    for chat in range(40):
        start, length = int(draw.integers(2_000)), int(draw.integers(2, 12))
        blocks = [0, *(1_000 * (1 + chat) + place for place in range(length))]
        for turn in range(4):
            output = int(draw.integers(1, 40))
            made.append(request(start + 60 * turn, blocks, output=output, session=f"chat {chat}"))
            length += output // BLOCK_TOKENS + 2
            blocks = [0, *(1_000 * (1 + chat) + place for place in range(length))]
    by_blocks = grown_by(BLOCK_TOKENS, Made(*made), gpu=240, closed=True)
    by_pieces = grown_by(4 * BLOCK_TOKENS, Made(*made), gpu=240, closed=True)
    assert by_pieces.requests == by_blocks.requests == 160
    assert by_pieces.events < by_blocks.events
    assert 0 < by_blocks.hit_rate < 0.9
    assert by_pieces.hit_rate == pytest.approx(by_blocks.hit_rate, rel=0.02)
    assert by_pieces.prefill_seconds == pytest.approx(by_blocks.prefill_seconds, rel=0.02)
    assert by_pieces.seconds == pytest.approx(by_blocks.seconds, rel=0.02)
