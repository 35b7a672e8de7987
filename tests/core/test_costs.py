"""What the store makes of a policy that knows costs: what it tells it, and what it does by its word."""

from typing import Any

import pytest

from kvstore.core.calls import SetCosts, Step
from kvstore.core.errors import CheckFailed, FieldInvalid, StepChanged
from kvstore.core.types import (
    COPY,
    CPU,
    GPU,
    LOAD,
    RESIDENT,
    SWAPPED,
    SWAPPING_IN,
    Activity,
    LinkCost,
    Retention,
    StepNumber,
    StepTiming,
)
from tests.core.caller import Caller
from tests.core.ops import activity, commit, free
from tests.core.snapshot import snapshot
from tests.core.word import Word, caller_with, decisions, leave, written
from tests.core.world import keys_of, text


def swapped(caller: Caller, sequence: int, token_count: int) -> tuple[int, ...]:
    tokens = written(caller, sequence, token_count)
    leave(caller, sequence, token_count)
    caller.world.drain()
    assert caller.state(sequence) is SWAPPED
    return tokens


def timing(step: int = 1, **fields: float) -> StepTiming:
    numbers = {"prefill_tokens": 10, "prefill_context": 50, "elapsed_seconds": 0.01} | fields
    return StepTiming(step=StepNumber(step), **numbers)  # type: ignore[arg-type]


def send(caller: Caller, *timings: StepTiming, step: int = 0) -> None:
    number = step or caller.step_number + 1
    event = Step(
        time=caller.world.time,
        engine=caller.id,
        step=StepNumber(number),
        completed_step=StepNumber(number - 1),
        operations=(),
        timings=timings,
    )
    caller.world.handle(event)
    caller.step_number = number


# ----------------------------------------------------------------------------- what it is told


def test_timings_are_told_once_however_often_a_step_is_sent() -> None:
    word = Word()
    caller = caller_with(word)
    caller.step()
    send(caller, timing())
    send(caller, timing(), step=caller.step_number)
    assert word.timings == [timing()]
    with pytest.raises(StepChanged):
        send(caller, timing(elapsed_seconds=0.02), step=caller.step_number)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", 0),
        ("step", 9),
        ("elapsed", 0.0),
        ("elapsed", -1.0),
        ("elapsed", float("nan")),
        ("elapsed", 1e9),
        ("prefill_tokens", 1 << 40),
        ("prefill_context", 1),
        ("prefill_context", 1 << 60),
        ("decode_sequences", 1 << 30),
        ("decode_context", 7),
    ],
)
def test_what_no_step_can_have_taken_is_refused_and_changes_nothing(name: str, value: float) -> None:
    word = Word()
    caller = caller_with(word)
    caller.step()
    before = snapshot(caller.world.store)
    fields: dict[str, Any] = {("elapsed_seconds" if name == "elapsed" else name): value}
    bad = timing(**fields) if name != "step" else timing(int(value))
    with pytest.raises(FieldInvalid) as refused:
        send(caller, timing(), bad)
    assert refused.value.field == f"timings[1].{name}"
    assert snapshot(caller.world.store) == before
    assert word.timings == []


def test_more_timings_than_a_step_may_have_are_refused() -> None:
    caller = caller_with(Word())
    caller.step()
    with pytest.raises(FieldInvalid, match="too large"):
        send(caller, *[timing()] * 65)
    send(caller, *[timing()] * 64)


def test_costs_of_links_are_told_and_impossible_ones_are_a_bug() -> None:
    word = Word()
    caller = caller_with(word)
    link = LinkCost(source=GPU, target=CPU, bytes_per_second=1e9, fixed_seconds=0.0)
    caller.world.handle(SetCosts(time=caller.world.time, block_bytes=1, links=(link,)))
    assert word.costs == (link,)
    dead = LinkCost(source=GPU, target=CPU, bytes_per_second=0.0, fixed_seconds=0.0)
    with pytest.raises(CheckFailed):
        caller.world.handle(SetCosts(time=caller.world.time, block_bytes=1, links=(dead,)))


def test_what_is_copied_already_and_what_others_hold_is_seen() -> None:
    word = Word(keeps=False)
    caller = caller_with(word, gpu_frames=16)
    tokens = text(1, 12)
    caller.begin(1, tokens)
    # Copied down as cache, and found again; then a second sequence shares the first two blocks.
    caller.step(free(1, retention=Retention.CACHE))
    caller.step()
    caller.world.drain()
    caller.allocate(2, 14, keys_of(tokens))
    caller.allocate(3, 9, keys_of(tokens[:8]))
    leave(caller, 2, 14)
    seen = word.departures[-1]
    assert (seen.tokens, seen.tokens_kept) == (14, 8)
    assert (seen.blocks_out, seen.blocks_in) == (1, 2)
    assert seen.chosen_before == ""


def test_it_is_told_what_it_chose_before() -> None:
    word = Word()
    caller = caller_with(word)
    swapped(caller, 1, 8)
    caller.swap_in(1)
    caller.world.drain()
    caller.step()
    word.keeps = False
    leave(caller, 1, 8)
    assert [each.chosen_before for each in word.departures] == ["", "swap"]
    caller.step()
    caller.swap_in(1)
    leave(caller, 1, 8)
    assert word.departures[-1].chosen_before == "drop"


def test_the_queue_and_the_load_of_a_link_are_seen() -> None:
    word = Word()
    caller = caller_with(word, gpu_frames=16, cpu_frames=32)
    for sequence in (1, 2):
        written(caller, sequence, 16)
    leave(caller, 1, 16)
    caller.world.time += 1.0
    leave(caller, 2, 16)
    copy = word.departures[-1].copy
    assert copy.blocks_ahead == 4
    assert copy.busy_share == pytest.approx(0.632, abs=0.01)
    caller.world.drain()
    assert caller.world.store.links.state(COPY).blocks_ahead == 0
    caller.world.tick(5.0)
    assert caller.world.store.links.state(COPY).busy_share < 0.01
    assert caller.world.store.links.state(LOAD).busy_share == 0.0


# ------------------------------------------------------------------------- what is loaded


@pytest.mark.parametrize("loads", [0, 1, 3, None])
def test_of_a_swapped_sequence_only_the_head_is_loaded(loads: int | None) -> None:
    word = Word(loads=loads)
    caller = caller_with(word)
    tokens = swapped(caller, 1, 10)
    result = caller.swap_in(1)
    assert word.restores[-1].runs == ((CPU, 3),)
    assert word.restores[-1].tokens == 10
    valid = 10 if loads in (None, 3) else loads * 4
    assert result.valid_tokens == valid
    assert result.state is (SWAPPING_IN if valid else RESIDENT)
    assert len(result.block_table) == 3
    caller.world.drain()
    caller.step()
    assert caller.state(1) is RESIDENT
    caller.read(caller.table(1), tokens[:valid])
    caller.write(caller.table(1), tokens, valid)
    caller.read(caller.table(1), tokens)
    # What was not loaded is kept below by nobody.
    assert caller.world.free_frames()[CPU] == 16


@pytest.mark.parametrize("loads", [0, 2, 3])
def test_of_a_cached_prefix_only_the_head_is_loaded_and_told_as_cached(loads: int) -> None:
    word = Word(loads=loads)
    caller = caller_with(word)
    tokens = text(1, 12)
    caller.cache(tokens)
    caller.world.drain()
    # Others take all of the GPU.
    caller.allocate(2, 32)
    caller.step(free(2, retention=Retention.DISCARD))
    caller.step()
    result = caller.allocate(3, 14, keys_of(tokens))
    assert result.cached_tokens == loads * 4
    assert result.tier_tokens == (0, loads * 4, 0)
    caller.world.drain()
    caller.step()
    caller.read(caller.table(3), tokens[: loads * 4])
    [decision] = decisions(caller, kind="restore")
    assert (decision.chosen_cost_seconds, decision.other_cost_seconds) == (3.0, 4.0)
    assert (decision.sequence, decision.chosen == "load all") == (3, loads == 3)
    # The engine computes the rest, and may commit it under the same keys.
    caller.write(caller.table(3), tokens, loads * 4)
    if loads < 3:
        caller.step(commit(3, keys_of(tokens)[loads:], loads))
    caller.step()


def test_nothing_is_weighed_where_all_is_on_the_gpu() -> None:
    word = Word(loads=0)
    caller = caller_with(word)
    tokens = text(1, 12)
    caller.cache(tokens)
    assert caller.allocate(2, 14, keys_of(tokens)).cached_tokens == 12
    assert word.restores == []


def test_a_part_that_waits_for_frames_is_weighed_again_when_it_gets_them() -> None:
    word = Word(loads=0)
    caller = caller_with(word, gpu_frames=4)
    tokens = swapped(caller, 1, 12)
    written(caller, 2, 16)
    assert caller.swap_in(1).frames_short > 0
    assert caller.state(1) is SWAPPED
    word.loads = 3
    caller.step(free(2, retention=Retention.DISCARD))
    result = caller.swap_in(1)
    assert result.valid_tokens == 12
    caller.world.drain()
    caller.step()
    caller.read(caller.table(1), tokens)


# --------------------------------------------------------------------- who makes room first


@pytest.mark.parametrize(
    ("rested", "told", "first"), [(0.5, -1.0, 2), (0.5, 20.0, 1), (3.0, -1.0, 1), (3.0, 0.1, 1)]
)
def test_one_that_has_just_been_parked_makes_room_last(rested: float, told: float, first: int) -> None:
    """It is held for as long as its move would take (here 2 s), unless it is known to rest for longer."""
    caller = caller_with(Word(hold=2.0))
    written(caller, 1, 8)
    written(caller, 2, 8)
    caller.step(activity(2, Activity.WAITING, 8))
    caller.step(activity(1, Activity.PARKED, 8, resume_delay_seconds=told))
    caller.world.time += rested
    caller.allocate(3, 20)
    assert [each.sequence for each in decisions(caller, kind="swap")] == [first]
    figures = dict(decisions(caller)[0].inputs)
    assert figures["frames_short"] == 1.0
    if first == 1:
        assert figures["rests_seconds"] == pytest.approx(max(rested, told))
        assert figures["hold_seconds"] == 2.0
    assert "the store makes room" in decisions(caller)[0].reason
