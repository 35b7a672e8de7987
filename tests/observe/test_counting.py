"""What is counted beside a store, against what the simulator itself has seen happen."""

from collections import Counter

import pytest

from kvstore.core.answers import StepAnswer
from kvstore.core.calls import Lookup, Single, Step, Watch
from kvstore.core.effects import Effects
from kvstore.core.errors import CheckFailed, FieldInvalid
from kvstore.core.events import Event, Tick, TransferEnded
from kvstore.core.operations import Allocate, AllocateResult, Fork, Grow, SwapResult
from kvstore.core.store import Store
from kvstore.core.types import COPY, GPU, LOAD, OK, READ, WRITE, Tier, TransferId
from kvstore.observe.counting import SECONDS, Counts, Histogram
from kvstore.sim.config import draw_config
from kvstore.sim.records import Handled, Moved
from kvstore.sim.schedule import draw_schedule
from kvstore.sim.simulation import START, Simulation
from kvstore.sim.world import World
from tests.core.caller import Caller
from tests.core.ops import allocate, grow
from tests.core.world import BLOCK_TOKENS, make_store, text

LINKS = (COPY, LOAD, READ, WRITE)
# Small enough that everything happens: swaps and drops, evictions, writes and reads of the disk.
SIZES = {
    "gpu_frames": 8,
    "cpu_frames": 4,
    "disk_frames": 30,
    "engines": 2,
    "restart_share": 0.0,
    "silence_share": 0.0,
    "pause_share": 0.0,
}
TURNS = 500
SEEDS = range(5)


def count(store: Store) -> Counts:
    """Counts all that the store handles from now on, each as if it had taken 60 us."""
    counts, handle = Counts(), store.handle

    def handle_and_count(event: Event) -> Effects:
        try:
            effects = handle(event)
        except Exception as error:
            counts.write(event, error, 60e-6)
            raise
        counts.write(event, effects, 60e-6)
        return effects

    store.handle = handle_and_count  # type: ignore[method-assign]
    return counts


def simulate(seed: int, **sizes: object) -> tuple[Simulation, Counts]:
    """All of a run up to where it would be emptied."""
    config = draw_config(seed, **(SIZES | sizes))
    run = Simulation(config, draw_schedule(config, TURNS, START))
    counts = count(run.world.store)
    while run.turn():
        pass
    return run, counts


@pytest.fixture(scope="module")
def runs() -> list[tuple[World, Counts]]:
    simulated = [simulate(seed) for seed in SEEDS]
    return [(run.world, counts) for run, counts in simulated]


def handled(world: World) -> list[tuple[Event, Effects]]:
    records = [each for each in world.log if isinstance(each, Handled)]
    return [(each.event, each.effects) for each in records if each.effects is not None]


def test_7_04_blocks_on_links_are_those_whose_bytes_the_simulator_has_moved(
    runs: list[tuple[World, Counts]],
) -> None:
    in_all: Counter[tuple[Tier, Tier]] = Counter()
    for world, counts in runs:
        assert counts.errors == 0
        moved: Counter[tuple[Tier, Tier]] = Counter()
        for record in world.log:
            if isinstance(record, Moved) and record.rank == 0:
                transfer, bad = record.transfer, {place for _, place in record.failed}
                moved[transfer.source, transfer.target] += len(transfer.source_frames) - len(bad)
        into = Counter(dict.fromkeys(Tier, 0))
        for link in LINKS:
            seen = counts.links[link]
            here = [each.transfer for each in world.moving(*link)]
            assert seen.blocks_under_way == sum(len(each.source_frames) for each in here)
            assert seen.blocks_started == seen.blocks_moved + seen.blocks_failed + seen.blocks_under_way
            # The bytes may have moved, and the end not be told yet.
            assert 0 <= moved[link] - seen.blocks_moved <= seen.blocks_under_way
            into[link[1]] += seen.blocks_moved
        assert [into[tier] for tier in Tier] == [tier.blocks_moved_in for tier in world.store.usage().tiers]
        in_all += moved
    assert in_all.total() > 0


def test_7_05_hits_are_those_that_engines_were_told_with_their_first_frames(
    runs: list[tuple[World, Counts]],
) -> None:
    in_all = 0
    for world, counts in runs:
        hits = _hits_told(world)
        assert [counts.sequences_admitted, counts.blocks_queried, *counts.blocks_hit] == hits
        assert sum(counts.blocks_hit) <= counts.blocks_queried
        in_all += sum(counts.blocks_hit)
    assert in_all > 0


def _hits_told(world: World) -> list[int]:
    """Sequences, blocks queried, and blocks found by tier: each sequence once, as it was answered."""
    hits = [0, 0, 0, 0, 0]
    known: set[tuple[str, int]] = set()
    for event, effects in handled(world):
        if not isinstance(event, Step | Single) or not isinstance(effects.answer, StepAnswer):
            continue
        first = {each.sequence: each for each in effects.admitted}
        assert len(first) == len(effects.admitted)
        for sequence, each in first.items():
            assert (event.engine, sequence) not in known, "admitted twice"
            known.add((event.engine, sequence))
            added = (1, each.blocks_queried, *each.tier_blocks)
            hits = [sum(pair) for pair in zip(hits, added, strict=True)]
        operations = event.operations if isinstance(event, Step) else (event.operation,)
        for operation, result in zip(operations, effects.answer.results, strict=True):
            if isinstance(operation, Fork):
                known.update((event.engine, child) for child in operation.children)
            if (
                isinstance(operation, Allocate)
                and isinstance(result, AllocateResult)
                and result.outcome is OK
            ):
                assert (event.engine, operation.sequence) in known, "has frames and was never admitted"
                if operation.sequence in first:
                    blocks = tuple(tokens // BLOCK_TOKENS for tokens in result.tier_tokens)
                    assert blocks == first[operation.sequence].tier_blocks
    return hits


def test_moves_of_sequences_are_the_decisions_told_and_what_the_store_did_itself(
    runs: list[tuple[World, Counts]],
) -> None:
    in_all: Counter[str] = Counter()
    for world, _ in runs:
        chosen, without_room = _decisions_told(world)
        sequences = world.store.usage().sequences
        assert sequences.swaps_out + sequences.drops == chosen.total() + sequences.reliefs
        assert sequences.swaps_out >= chosen["swap"]
        assert sequences.drops_for_room >= without_room
        held = [len(engine.sequences) for engine in world.store.membership.engines.values()]
        states = (sequences.resident, sequences.swapping_out, sequences.swapped, sequences.swapping_in)
        assert sum(states) + sequences.dropped == sum(held)
        assert sequences.swaps_in <= sequences.swaps_out
        in_all += chosen + Counter(relief=sequences.reliefs)
    assert in_all.total() > 0


def _decisions_told(world: World) -> tuple[Counter[str], int]:
    """By what was chosen, and those for which there was no room below."""
    chosen: Counter[str] = Counter()
    without_room = 0
    answers: set[int] = set()
    for _, effects in handled(world):
        answer = effects.answer
        # A retry is answered with what was answered before.
        if not isinstance(answer, StepAnswer) or id(answer) in answers:
            continue
        answers.add(id(answer))
        for result in answer.results:
            if isinstance(result, SwapResult) and result.decision is not None:
                chosen[result.decision.chosen] += 1
                without_room += not dict(result.decision.inputs)["room_below"]
    return chosen, without_room


def test_7_04_what_was_stored_and_not_deleted_is_what_the_disk_holds() -> None:
    in_all = 0
    for seed in SEEDS:
        # Without a disk that fails or changes: what is lost there goes without being deleted.
        run, counts = simulate(seed, disk_frames=6, fail_share=0.0, flip_share=0.0, disk_full_share=0.0)
        run.clock.run_until(run.world, run.world.time + 5)
        disk = run.world.store.usage().tiers[Tier.DISK]
        stored, deleted = counts.links[Tier.CPU, Tier.DISK].blocks_moved, counts.blocks_deleted
        held = disk.frames_total - disk.frames_free - counts.links[Tier.CPU, Tier.DISK].blocks_under_way
        assert stored - deleted == held == len(run.world.shadow.disk)
        assert deleted >= disk.blocks_evicted
        in_all += stored
    assert in_all > 0


def test_steps_operations_events_and_refusals_are_counted(runs: list[tuple[World, Counts]]) -> None:
    for world, counts in runs:
        # Whoever watches has begun before the counts.
        events = Counter(type(event) for event, _ in handled(world) if not isinstance(event, Watch))
        refused = sum(isinstance(each, Handled) and each.effects is None for each in world.log)
        assert sum(counts.events.values()) == events.total() + refused
        assert sum(counts.refusals.values()) == refused
        steps = [event for event, _ in handled(world) if isinstance(event, Step | Single)]
        assert counts.store_seconds.count == len(steps)
        assert counts.store_seconds.sum == pytest.approx(60e-6 * len(steps))
        operations = [each for event in steps if isinstance(event, Step) for each in event.operations]
        operations += [event.operation for event in steps if isinstance(event, Single)]
        grown = sum(len(each.sequences) for each in operations if isinstance(each, Grow))
        assert counts.sequences_grown == grown
        assert {k: n for k, n in counts.operations.items() if n} == Counter(map(type, operations))
        assert counts.operation_count == sum(not isinstance(each, Grow) for each in operations) + grown


def test_a_grow_counts_once_and_its_sequences_beside_it() -> None:
    caller = Caller(World(make_store()))
    caller.step(allocate(1, 4), allocate(2, 4))
    counts = count(caller.world.store)
    caller.step(grow([1, 2], [8, 8], [1, 1]))
    caller.step(allocate(1, 9))
    assert (counts.operations[Grow], counts.sequences_grown, counts.operation_count) == (1, 2, 3)


def test_7_06_whatever_is_wrong_with_the_counting_the_store_never_notices() -> None:
    caller = Caller(World(make_store(cpu_frames=8)))
    counts = count(caller.world.store)
    # The end of a transfer that it has not seen begin.
    counts.write(TransferEnded(time=1.0, transfer=TransferId(99)), Effects(), 1e-6)
    assert counts.errors == 1
    counts.store_seconds = None  # type: ignore[assignment]
    assert caller.allocate(1, 9).outcome is OK
    assert counts.errors == 2
    counts.add_call("soon")  # type: ignore[arg-type]
    assert counts.errors == 3


def test_refusals_count_by_reason_and_bugs_by_name() -> None:
    counts = Counts()
    counts.write(Tick(time=1.0), FieldInvalid("no", field="f"), 1e-6)
    counts.write(Tick(time=1.0), CheckFailed("a bug"), 1e-6)
    assert counts.refusals == {"FIELD_INVALID": 1, "CheckFailed": 1}
    assert counts.events == {Tick: 2}


def test_a_lookup_is_no_admission() -> None:
    caller = Caller(World(make_store()))
    caller.cache(text(1, 9))
    counts = count(caller.world.store)
    caller.lookup(())
    assert (counts.events[Lookup], counts.sequences_admitted, counts.blocks_queried) == (1, 0, 0)


def test_the_seconds_of_a_transfer_run_from_its_start_to_its_end() -> None:
    caller = Caller(World(make_store(cpu_frames=8)))
    counts = count(caller.world.store)
    caller.allocate(1, 16)
    caller.write(caller.table(1), text(1, 16))
    caller.swap_out(1, 16)
    caller.step()
    caller.world.time += 2.5
    caller.world.drain()
    link = counts.links[GPU, Tier.CPU]
    assert (link.transfers, link.blocks_moved, link.blocks_under_way) == (1, 4, 0)
    assert link.seconds == pytest.approx(2.5)


def test_a_histogram_has_a_place_for_every_duration() -> None:
    histogram = Histogram()
    for seconds in (0.0, SECONDS[0], SECONDS[0] * 1.01, 0.9, 5.0):
        histogram.add(seconds)
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[-2:]) == (2, 1, [1, 1])
    assert histogram.count == 5
    assert histogram.sum == pytest.approx(5.9 + 2.01 * SECONDS[0])
