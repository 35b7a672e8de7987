"""Drop or swap over a grid of lengths, link speeds and loads: `python -m bench.swap_grid [--json]`.

Nothing is reckoned by the formula: for each cell the same play is given three times in virtual time, with a
real store: swapped by force, dropped by force, and as the store chooses by what it has learnt from the
timings of the steps before. The play: a sequence is preempted so that another can have all GPU frames; when
that one has gone it comes back. What counts is how long the other waited for its frames, and the time from
asking the sequence back until it has all its tokens, loaded or computed, and the GPU has caught up with what
came by meanwhile: for a pass of prefill may end soon and all the same cost those who wait behind it.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.virtual_engine import BLOCK_TOKENS, Machine, VirtualEngine
from kvstore.core.errors import check
from kvstore.core.operations import Allocate, AllocateResult, Free, Swap, SwapResult
from kvstore.core.types import (
    OK,
    RESIDENT,
    SWAPPING_IN,
    Direction,
    Retention,
    SequenceId,
    SwapMode,
    blocks_for_tokens,
)

__all__ = ["GRID_LENGTHS", "GRID_LOADS", "GRID_SPEEDS", "Cell", "measure", "summarise"]

GRID_LENGTHS = tuple(64 << n for n in range(10))
GRID_SPEEDS = (1e9, 2e9, 5e9, 10e9, 20e9, 50e9)
GRID_LOADS = (0.0, 0.3, 0.6, 0.9)
VICTIM, OTHER = 1, 2
# What is prefilled before, so that the store has something to learn from: prompts of these lengths.
PROMPTS = (40, 200, 512, 900, 2_000, 4_000)
# Long enough for the load to be what it is, and for the prompts' own load to be forgotten.
PAUSE_SECONDS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    tokens: int
    bytes_per_second: float
    load: float
    swap_seconds: float
    drop_seconds: float
    chosen: str

    @property
    def dearer(self) -> float:
        """What was chosen, over the best."""
        chosen = self.swap_seconds if self.chosen == "swap" else self.drop_seconds
        return chosen / min(self.swap_seconds, self.drop_seconds)


def measure(tokens: int, bytes_per_second: float, load: float) -> Cell:
    machine = Machine(bytes_per_second=bytes_per_second, load=load)
    swap, _ = _play(machine, tokens, SwapMode.KEEP)
    drop, _ = _play(machine, tokens, SwapMode.DROP)
    _, chosen = _play(machine, tokens, SwapMode.AUTO)
    return Cell(
        tokens=tokens,
        bytes_per_second=bytes_per_second,
        load=load,
        swap_seconds=swap,
        drop_seconds=drop,
        chosen=chosen,
    )


def _play(machine: Machine, tokens: int, mode: SwapMode) -> tuple[float, str]:
    """Seconds that were waited, and what was chosen."""
    blocks = blocks_for_tokens(tokens, BLOCK_TOKENS)
    engine = VirtualEngine(machine, gpu_frames=blocks, cpu_frames=blocks)
    for prompt in PROMPTS:
        engine.prefill(0, prompt)
        engine.run(lambda: engine.has_caught_up)
    engine.rest(PAUSE_SECONDS)
    engine.step(Allocate(sequence=SequenceId(VICTIM), token_count=tokens))

    begin = engine.now
    out = Swap(sequence=SequenceId(VICTIM), direction=Direction.OUT, mode=mode, filled_tokens=tokens)
    [result] = engine.step(out)
    decision = result.decision if isinstance(result, SwapResult) else None
    engine.run(lambda: _gets_frames(engine, tokens))
    waited = engine.now - begin

    engine.step(Free(sequences=(SequenceId(OTHER),), retention=Retention.DISCARD))
    engine.rest(PAUSE_SECONDS)
    begin = engine.now
    [back] = engine.step(Swap(sequence=SequenceId(VICTIM), direction=Direction.IN))
    check(isinstance(back, SwapResult) and back.outcome is OK, f"it can't come back: {back}")
    engine.run(lambda: engine.look(VICTIM).state is not SWAPPING_IN)
    seen = engine.look(VICTIM)
    check(seen.state is RESIDENT, f"it has come back {seen.state.name}")
    # Its last token is computed in any case.
    valid = seen.valid_tokens
    engine.prefill(min(valid, tokens - 1), tokens)
    engine.run(lambda: engine.has_caught_up)
    return waited + engine.now - begin, decision.chosen if decision is not None else ""


def _gets_frames(engine: VirtualEngine, tokens: int) -> bool:
    [result] = engine.step(Allocate(sequence=SequenceId(OTHER), token_count=tokens))
    return isinstance(result, AllocateResult) and result.outcome is OK


def summarise(cells: Sequence[Cell]) -> dict[str, float]:
    right = sum(cell.dearer == 1.0 for cell in cells)
    return {
        "cells": len(cells),
        "cheaper_chosen_share": right / len(cells),
        "dearer_most": max(cell.dearer for cell in cells),
        "swaps": sum(cell.chosen == "swap" for cell in cells),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.swap_grid")
    parser.add_argument("--json", action="store_true", help="each cell as a line, then the summary")
    as_json: bool = parser.parse_args().json
    cells = []
    for load in GRID_LOADS:
        for speed in GRID_SPEEDS:
            row = [measure(tokens, speed, load) for tokens in GRID_LENGTHS]
            cells += row
            if as_json:
                for cell in row:
                    print(json.dumps({**asdict(cell), "dearer": cell.dearer}))
            else:
                marks = " ".join(
                    f"{cell.chosen[0]}{'' if cell.dearer == 1 else f'!{cell.dearer:.2f}'}" for cell in row
                )
                print(f"load {load:.1f}  {speed / 1e9:>4.0f} GB/s  {marks}")
    found = summarise(cells)
    print(json.dumps(found) if as_json else f"lengths {GRID_LENGTHS}; {found}")
    return 0 if found["cheaper_chosen_share"] >= 0.95 and found["dearer_most"] <= 1.1 else 1


if __name__ == "__main__":
    sys.exit(main())
