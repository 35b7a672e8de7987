"""Stories as a reader gets them: the whole text, kept in stories.txt and reviewed as a diff.

After a change of the core that is meant to do something else, or of the words:
`python -m tests.observe.test_story` writes it anew.
"""

import tempfile
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from kvstore.core.calls import SetLimits
from kvstore.core.errors import EngineExpired, JournalInvalid
from kvstore.core.types import Retention, Tier, Watermarks
from kvstore.observe.reading import find_runs
from kvstore.observe.selecting import parse_selector
from tests.core.caller import Caller
from tests.core.ops import allocate, commit, fork, free, swap_in, swap_out
from tests.core.world import World, keys_of, make_store, text
from tests.observe.helpers import journaled, replay, write_records

STORIES = Path(__file__).parent / "stories.txt"
TOKENS = text(1, 12)
KEYS = keys_of(TOKENS)
TOLD = (
    "sequence=0001:1",
    "sequence=2",
    "session=chat",
    f"block={KEYS[1].hex()[:10]}",
    "block=gpu:1",
    "block=disk:2",
)


def chat(path: Path) -> None:
    """A turn that is forked, swapped out and in, and goes down to disk; then others need the room."""
    world = World(make_store(gpu_frames=6, cpu_frames=8, disk_frames=6))
    with journaled(world.store, path):
        first = Caller(world)
        first.begin(1, TOKENS, session="chat")
        world.tick()
        first.step(allocate(1, 14))
        first.step(fork(1, 2), allocate(2, 15))
        first.step(free(2, retention=Retention.CACHE))
        world.tick()
        first.step(swap_out(1, 14))
        first.step()
        world.drain()
        world.tick()
        first.step(swap_in(1))
        world.drain()
        first.keep_alive()
        first.step(free(1, retention=Retention.SESSION))
        world.tick()
        first.step()
        world.drain()
        first.close_tethers()
        second = Caller(world, 2)
        second.lookup((*KEYS[:2], keys_of(text(9, 4))[0]))
        second.begin(7, text(3, 24))
        second.step(free(7))
        second.step()
        world.drain()
        second.allocate(8, 12, KEYS)
        world.end(world.under_way[0], failed=[0])
        second.keep_alive()


def losses(path: Path) -> None:
    """An engine that dies with a commit in flight, and one that lets its lease run out."""
    world = World(make_store())
    with journaled(world.store, path, epoch=8):
        first, second = Caller(world), Caller(world, 2)
        first.begin(1, TOKENS)
        world.tick()
        first.close_tethers()
        second.begin(1, text(2, 8), session="long")
        for _ in range(12):
            world.tick(0.9)
        with pytest.raises(EngineExpired):
            second.keep_alive()


def told(folder: Path) -> str:
    chat(folder)
    losses(folder)
    pieces = []
    for of in TOLD:
        done = replay(folder, "--epoch", f"{7:016x}", "--story", of)
        assert done.exit_code == 0, done.output
        pieces.append(f"--story {of}\n{done.output}")
    for of in ("sequence=1", "session=long"):
        pieces.append(f"--story {of}\n{replay(folder, '--epoch', f'{8:016x}', '--story', of).output}")
    return "\n".join(pieces)


def test_stories_read_as_they_stand_in_the_file(tmp_path: Path) -> None:
    assert told(tmp_path) == STORIES.read_text()


def test_a_story_is_told_from_the_middle_on_too(tmp_path: Path) -> None:
    """By what the entries themselves say; what came before is unknown, not guessed."""
    chat(tmp_path / "whole")
    [run] = find_runs(tmp_path / "whole")
    kept = [entry for entry in run.entries() if entry.number > 12]
    part = tmp_path / "0000000002.journal"
    write_records(part, changed(run.heading, first_entry=13), *kept)

    def lines(path: Path) -> list[str]:
        """But those on copies that are gone: where else the block was is not known in the middle."""
        done = replay(path, "--story", f"block={KEYS[1].hex()}")
        assert done.exit_code == 0
        return [line for line in done.output.splitlines() if "copies gone" not in line]

    heading, *told_of_part = lines(part)
    assert heading.endswith("its beginning is overwritten, kept from entry 13 on")
    whole = lines(tmp_path / "whole")
    # The disk's transfers name their blocks: from there on it is known.
    known = next(place for place, line in enumerate(whole) if "to DISK started" in line)
    assert told_of_part == whole[known:]
    assert len(told_of_part) > 5


def test_what_no_run_knows_of_is_told_so_and_no_success(tmp_path: Path) -> None:
    """Limits that were set are part of every story, but no story by themselves."""
    world = World(make_store())
    with journaled(world.store, tmp_path):
        Caller(world).begin(1, TOKENS, session="chat")
        world.handle(SetLimits(time=world.time, watermarks=(Watermarks(tier=Tier.GPU, high=0.9, low=0.5),)))
    known = replay(tmp_path, "--story", "session=chat")
    assert (known.exit_code, "watermarks" in known.output) == (0, True), known.output
    done = replay(tmp_path, "--story", "session=unknown")
    _, first, second = done.output.splitlines()
    assert (done.exit_code, first) == (1, "  nothing is known of session=unknown")
    assert "watermarks" in second


def test_a_step_asked_again_is_told_once(tmp_path: Path) -> None:
    world = World(make_store())
    with journaled(world.store, tmp_path):
        caller = Caller(world)
        caller.begin(1, TOKENS)
        caller.step_number -= 1
        caller.step(commit(1, KEYS))
    told = replay(tmp_path, "--story", "sequence=1").output
    assert (told.count("Allocate"), told.count("Commit")) == (1, 1)


def test_what_was_loaded_and_left_is_known_until_its_frame_is_used_again(tmp_path: Path) -> None:
    world = World(make_store(gpu_frames=6, cpu_frames=8))
    with journaled(world.store, tmp_path):
        caller = Caller(world)
        caller.cache(TOKENS)
        world.drain()
        # Out of the GPU, back in by a load, free, and out again.
        for sequence in (1, 3):
            caller.allocate(sequence, 24)
            caller.step(free(sequence))
            caller.step()
            caller.allocate(sequence + 1, 13, KEYS)
            world.drain()
            caller.keep_alive()
            caller.step(free(sequence + 1))
            caller.step()
    told = replay(tmp_path, "--story", f"block={KEYS[0].hex()}").output
    assert told.count("from CPU to GPU ended well") == 2
    assert told.count("copies gone") == 2


@pytest.mark.parametrize(
    "of", ["", "block", "block=", "block=xyz", "block=gpu:", "sequence=a", "sequence=zz:1", "session=", "x=1"]
)
def test_what_is_nobodys_story(of: str) -> None:
    with pytest.raises(JournalInvalid, match="nobody's story") as refused:
        parse_selector(of)
    assert refused.value.field == "--story"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        STORIES.write_text(told(Path(made)))
