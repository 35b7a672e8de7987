"""Stories tell the truth: what they take a frame to hold is what the shadow memory holds there."""

from pathlib import Path

import pytest

from kvstore.core.types import BlockKey, SequenceId, SequenceState, Tier
from kvstore.observe.facts import Ref
from kvstore.observe.reading import find_runs
from kvstore.observe.selecting import parse_selector
from kvstore.observe.story import tell_story
from kvstore.observe.telling import Teller
from kvstore.sim.texts import Content
from tests.core.fuzz import Fuzz
from tests.core.world import BLOCK_TOKENS, keys_of
from tests.observe.helpers import journaled

SIZES = [{"cpu_frames": 12, "disk_frames": 20}, {"cpu_frames": 6}, {}]
TURNS = 60


def blocks_of(run: Fuzz) -> dict[BlockKey, Content]:
    """What the engines' texts have under each key."""
    blocks = {}
    for engine in [*run.engines.values(), *run.leaving]:
        for line in engine.lines.values():
            for place, key in enumerate(keys_of(line.tokens)):
                blocks[key] = tuple(line.tokens[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS])
    return blocks


def settle(run: Fuzz) -> None:
    """All that is in flight ends: also the work that an engine left on its stream which died since."""
    for engine in [*run.engines.values(), *run.leaving]:
        engine.run_work(engine.step)
    run.world.drain()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("seed", [7, 8])
def test_what_a_story_knows_is_so(tmp_path: Path, seed: int, sizes: dict[str, int]) -> None:
    run = Fuzz(seed, **sizes)
    blocks: dict[BlockKey, Content] = {}
    with journaled(run.world.store, tmp_path) as journal:
        for _ in range(TURNS):
            run.turn()
            blocks |= blocks_of(run)
        told_before = journal.count
        tables = {
            Ref(engine.id, SequenceId(line.id)): list(line.table)
            for engine in run.engines.values()
            for line in engine.lines.values()
            if line.state is SequenceState.RESIDENT
        }
        # From here on nothing is under way: what is known to be in a frame has to be there.
        settle(run)
    [found] = find_runs(tmp_path)
    teller = Teller(BLOCK_TOKENS)
    for entry in found.entries():
        for _ in teller.tell(entry):
            pass
        if entry.number == told_before:
            assert {ref: teller.tables.lines[ref].table for ref in tables} == tables
    known = {
        place: blocks[content.key]
        for place, content in teller.tables.contents.items()
        if content.key and place.tier is not Tier.DISK and teller.tables.is_there(place)
    }
    assert len(known) >= 4
    held = run.world.shadow.held
    assert {place: held(place.tier, place.frame).tokens for place in known} == known


def test_a_story_names_each_transfer_of_a_frame_once(tmp_path: Path) -> None:
    """Begun, and ended well or badly."""
    run = Fuzz(14, cpu_frames=12, disk_frames=20)
    with journaled(run.world.store, tmp_path):
        while run.turn():
            pass
        settle(run)
    [found] = find_runs(tmp_path)
    told = tell_story(found, parse_selector("block=cpu:5")).lines
    begun = [line for line in told if " started: " in line]
    ways = (" ended well: ", " failed: ", " was not done in time: ")
    ended = [line for line in told if any(way in line for way in ways)]
    assert len(begun) == len(ended) > 5
