"""The story of a frame: all that happened to it, and to what its bytes came from, in order and no more."""

import re

from kvstore.core.types import SwapMode, Tier
from kvstore.sim.engine import SimEngine
from kvstore.sim.ops import free, swap_in
from kvstore.sim.story import tell
from kvstore.sim.texts import text
from kvstore.sim.verbs import begin, preempt
from kvstore.sim.world import World
from tests.core.world import make_store


def engine_of() -> SimEngine:
    return SimEngine(World(make_store(gpu_frames=6, cpu_frames=8)), 3)


def step(engine: SimEngine, *operations: object) -> None:
    engine.take_step(list(operations))  # type: ignore[arg-type]
    engine.run_work(engine.step)


def swapped_out_and_in(engine: SimEngine) -> None:
    """One sequence of three blocks goes down and comes back to other frames."""
    step(engine, begin(engine, text(1, 12), "a"))
    step(engine, preempt(engine.lines[1], SwapMode.KEEP))
    step(engine)
    engine.world.drain()
    step(engine, begin(engine, text(2, 8), "a"))
    step(engine, swap_in(1))
    engine.world.drain()
    step(engine)
    step(engine)


def told(engine: SimEngine, frame: int) -> list[str]:
    lines = tell(engine.world.log, [(Tier.GPU, frame)])
    return [re.sub(r"^ *[\d.]+  ", "", line) for line in lines]


def test_a_block_is_followed_to_where_its_bytes_came_from() -> None:
    engine = engine_of()
    swapped_out_and_in(engine)
    frame = engine.lines[1].table[1]
    lines = told(engine, frame)
    below = re.search(r"what CPU frame (\d) holds is now in GPU frame", "\n".join(lines))
    assert below is not None
    up, down = f"CPU frame {below[1]} to GPU frame {frame}", f"to CPU frame {below[1]}"
    whats = [
        "Allocate gives block 1 of sequence 1",
        "writes block 1 of sequence 1",
        "Swap out (KEEP, now SWAPPING_OUT) takes block 1 of sequence 1",
        down,
        up,
        "is told: back is block 1 of sequence 1",
        "reads block 1 of sequence 1",
    ]
    places = [next(place for place, line in enumerate(lines) if what in line) for what in whats]
    assert places == sorted(places)


def test_other_blocks_are_not_in_it() -> None:
    engine = engine_of()
    swapped_out_and_in(engine)
    table = engine.lines[2].table
    lines = told(engine, table[0])
    assert any("Allocate gives block 0 of sequence 2" in line for line in lines)
    assert not any(f"GPU frame {table[1]}" in line for line in lines)


def test_without_a_frame_it_is_about_what_happened_last() -> None:
    engine = engine_of()
    swapped_out_and_in(engine)
    table = engine.lines[2].table
    engine.take_step([free(2)])
    lines = tell(engine.world.log, [])
    assert f"Free (DEFAULT) gives up block 1 of sequence 2 of engine 3, GPU frame {table[1]}" in lines[-1]
