"""What was journaled comes out of a fresh store again; what does not is named."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from kvstore.core.answers import StepAnswer
from kvstore.core.calls import Detach, KeepAlive
from kvstore.core.effects import Effects
from kvstore.core.errors import CheckFailed, JournalInvalid, KVStoreError
from kvstore.core.events import BlocksFound
from kvstore.core.types import StepNumber
from kvstore.observe.reading import find_runs
from kvstore.observe.records import Entry, Failure, Refusal
from kvstore.observe.replay import remake, replay
from tests.core.caller import Caller
from tests.core.fuzz import Fuzz
from tests.core.world import World, engine_id, make_store, text
from tests.observe.helpers import journaled, write_records
from tests.observe.helpers import replay as run_replay
from tests.server.harness import until

SIZES = [
    {"cpu_frames": 12, "disk_frames": 20},
    {"cpu_frames": 12, "disk_frames": 20, "by_cost": 1},
    {"cpu_frames": 12, "disk_frames": 20, "percent_of_a": 80},
    {"cpu_frames": 12, "disk_frames": 20, "eviction": 1, "judges_turns": 1},
    {"cpu_frames": 6},
    {},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_fuzz_run_has_the_same_effects_again(tmp_path: Path, sizes: dict[str, int]) -> None:
    run = Fuzz(11, **sizes)
    with journaled(run.world.store, tmp_path):
        while run.turn():
            pass
    [found] = find_runs(tmp_path)
    replayed = replay(found)
    assert (replayed.difference, replayed.failure, found.torn) == (None, None, "")
    assert replayed.entries == sum(1 for _ in found.entries()) > 200
    done = run_replay(tmp_path)
    assert (done.exit_code, f"{replayed.entries} events, the same effects" in done.output) == (0, True)
    # What is counted beside the effects, ghosts and what each tenant has, is the same as well.
    usage = remake(found).usage()
    assert usage == run.world.store.usage()


def test_what_is_counted_of_ghosts_is_the_same_again(tmp_path: Path) -> None:
    world = World(make_store(gpu_frames=8, cpu_frames=12))
    with journaled(world.store, tmp_path):
        caller = Caller(world)
        for number in (1, 2, 3, 4, 5, 6, 7, 8, 5, 4):
            caller.cache(text(number, 16))
            world.drain()
    [run] = find_runs(tmp_path)
    usage = remake(run).usage()
    assert usage == world.store.usage()
    assert all(tier.blocks_ghost_hit > 0 for tier in usage.tiers[:2])


def count_entries(path: Path) -> int:
    return sum(1 for run in find_runs(path) for _ in run.entries())


def small_run(path: Path) -> list[Entry]:
    """A few steps; returns their entries."""
    world = World(make_store(cpu_frames=8))
    with journaled(world.store, path):
        caller = Caller(world)
        caller.begin(1, text(1, 9))
        caller.allocate(1, 14)
    [run] = find_runs(path)
    return list(run.entries())


def test_another_effect_is_found_and_told(tmp_path: Path) -> None:
    entries = small_run(tmp_path / "good")
    [run] = find_runs(tmp_path / "good")
    last = entries[-1].outcome
    assert isinstance(last, Effects)
    assert isinstance(last.answer, StepAnswer)
    [result] = last.answer.results
    changed = replace(last, answer=replace(last.answer, results=(replace(result, block_table=(2, 1, 0, 7)),)))
    tampered = tmp_path / "0000000001.journal"
    write_records(tampered, run.heading, *entries[:-1], replace(entries[-1], outcome=changed))
    done = run_replay(tampered)
    assert done.exit_code == 1
    told = done.output.splitlines()[1:]
    assert told == [
        f"  event {len(entries)} at 0.000 s came out otherwise: step 3 of engine {engine_id(1)}, "
        "2 completed: Allocate sequence 1, 14 tokens",
        "  then: OK, RESIDENT, frames 2 1 0 7",
        "  now:  OK, RESIDENT, frames 2 1 0 3",
        "  answer.results[0].block_table: (2, 1, 0, 7) then, (2, 1, 0, 3) now",
    ]


def test_a_refusal_is_a_refusal_again(tmp_path: Path) -> None:
    world = World(make_store())
    with journaled(world.store, tmp_path):
        caller = Caller(world)
        with pytest.raises(KVStoreError):
            caller.allocate(1, 10**9)
        caller.allocate(1, 4)
        caller.detach()
        with pytest.raises(KVStoreError):
            caller.allocate(2, 4)
    assert run_replay(tmp_path).exit_code == 0


def test_a_refusal_for_another_reason_is_found_but_not_another_wording(tmp_path: Path) -> None:
    world = World(make_store())
    with journaled(world.store, tmp_path / "good"), pytest.raises(KVStoreError):
        world.handle(KeepAlive(time=100.0, engine=engine_id(1), completed_step=StepNumber(0)))
    [run] = find_runs(tmp_path / "good")
    [entry] = run.entries()
    for outcome, status in (
        (Refusal(reason="ENGINE_EXPIRED", text="in other words"), 0),
        (Refusal(reason="STEP_GAP", text="in other words"), 1),
    ):
        segment = tmp_path / "0000000001.journal"
        write_records(segment, run.heading, replace(entry, outcome=outcome))
        assert run_replay(segment).exit_code == status


def test_an_event_that_is_refused_now_only_is_told(tmp_path: Path) -> None:
    entries = small_run(tmp_path / "good")
    [run] = find_runs(tmp_path / "good")
    before, after = entries[0], entries[-1]
    gone = Entry(number=2, event=Detach(time=100.0, engine=engine_id(1)), outcome=Effects())
    changed = tmp_path / "0000000001.journal"
    write_records(changed, run.heading, before, gone, replace(after, number=3))
    done = run_replay(changed)
    assert done.exit_code == 1
    assert "now:  refused, ENGINE_EXPIRED" in done.output
    assert "outcome: Effects then, Refusal now" in done.output


def test_a_bug_is_met_again_and_is_the_end(tmp_path: Path) -> None:
    world = World(make_store(cpu_frames=8, disk_frames=8))
    with journaled(world.store, tmp_path) as journal:
        Caller(world)
        with pytest.raises(CheckFailed):
            world.handle(BlocksFound(time=world.time))
        path = journal.path
        # The process may end any moment: it does not wait for the next tick, nor for the end.
        until(lambda: count_entries(path), lambda entries: entries == journal.count)
    [run] = find_runs(path)
    replayed = replay(run)
    assert replayed.failure == Failure(
        kind="CheckFailed", text="blocks were found after an engine had attached"
    )
    done = run_replay(path)
    assert done.exit_code == 0
    assert "the store stopped, now as then, CheckFailed: blocks were found" in done.output
    assert "the store stopped, CheckFailed" in run_replay(path, "--story", "session=any").output


def test_with_check_a_store_that_breaks_an_invariant_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run(tmp_path)
    [run] = find_runs(tmp_path)
    assert replay(run, check_each=True).difference is None

    def broken(store: object) -> None:
        raise CheckFailed("two and two are five")

    monkeypatch.setattr("kvstore.observe.replay.check_invariants", broken)
    assert replay(run).difference is None
    found = replay(run, check_each=True)
    assert found.difference is not None
    assert found.difference.found == Failure(kind="CheckFailed", text="two and two are five")


def test_runs_are_told_apart_and_can_be_named(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        world = World(make_store())
        with journaled(world.store, tmp_path, epoch=epoch):
            Caller(world).allocate(1, 4 * epoch)
    done = run_replay(tmp_path)
    assert (done.exit_code, done.output.count("the same effects")) == (0, 3)
    done = run_replay(tmp_path, "--epoch", "0000000000000002")
    assert (done.exit_code, done.output.count("the same effects")) == (0, 1)
    done = run_replay(tmp_path, "--epoch", "f")
    assert isinstance(done.exception, JournalInvalid)
    assert "no run whose epoch begins with 'f' is recorded there" in str(done.exception)
