"""The short way of sequences that only grow leads where the general one does."""

from typing import Any

import msgspec
import pytest

from kvstore.core.effects import Effects
from kvstore.core.growing import Growing
from kvstore.core.operations import AllocateResult
from kvstore.core.types import Outcome
from tests.core.caller import Caller
from tests.core.fuzz import Fuzz
from tests.core.ops import allocate
from tests.core.world import World, keys_of, make_store, text


def shape(effects: Effects) -> object:
    """All but which frames: growth is granted first here, and in the order of the step there."""
    told = msgspec.to_builtins(effects)
    todo = [told]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            for name in ("block_table", "frames", "source_frames", "target_frames"):
                if name in value:
                    value[name] = len(value[name])
            if {"source", "target"} == set(value):
                value.clear()
            todo += value.values()
        elif isinstance(value, list | tuple):
            todo += value
    return told


@pytest.mark.parametrize(
    "sizes", [{"gpu_frames": 40, "cpu_frames": 12, "disk_frames": 20}, {"gpu_frames": 24}], ids=str
)
@pytest.mark.parametrize("seed", range(1, 5))
def test_the_same_events_have_the_same_effects_without_it(
    seed: int, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    short, serve = [0], Growing._serve

    def count(self: Growing, *arguments: Any, **named: Any) -> Any:
        grown = serve(self, *arguments, **named)
        short[0] += len(arguments[1]) if grown is not None else 0
        return grown

    monkeypatch.setattr(Growing, "_serve", count)
    # What is forgotten goes in the order of rows, which are others then.
    run = Fuzz(seed, **sizes, forget_share=0)
    events = run.note()
    assert short[0] >= 2
    monkeypatch.setattr(Growing, "_serve", lambda self, *arguments, **named: None)
    general = make_store(**sizes)
    for event, effects in events:
        assert shape(general.handle(event)) == shape(effects)


def test_two_operations_on_one_sequence_take_its_blocks_once() -> None:
    caller = Caller(World(make_store()))
    caller.allocate(1, 8)
    first, second = caller.step(allocate(1, 9, known_blocks=2), allocate(1, 13, known_blocks=2)).results
    assert isinstance(first, AllocateResult)
    assert isinstance(second, AllocateResult)
    assert (first.outcome, second.outcome) == (Outcome.OK, Outcome.OK)
    assert second.block_table == caller.table(1)[2:]
    assert len(set(caller.table(1))) == 4


def test_growth_does_not_evict_what_a_prompt_of_the_same_step_hits() -> None:
    caller = Caller(World(make_store(gpu_frames=8)))
    caller.allocate(1, 8)
    caller.cache(text(2, 12))
    caller.cache(text(3, 12))
    assert caller.world.free_frames()[0] == 0
    _, hit = caller.step(allocate(1, 9, known_blocks=2), allocate(2, 13, keys_of(text(2, 12)))).results
    assert isinstance(hit, AllocateResult)
    assert (hit.outcome, hit.cached_tokens) == (Outcome.OK, 12)
