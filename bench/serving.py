"""The engine's server under real loads, in each of its set-ups: `python -m bench.serving [--json] [--save]`.

SmolLM2 on two threads of a CPU, over HTTP, with streamed answers: contiguous, paged, shared, tiered and full.
What is compared runs in one call, mostly in turns, so that a ratio says something on a busy machine too. All
parts took 15 minutes on two quiet cores, and twice that on slower ones; `--part NAME` runs one. `--quick` has
the tiny model and small loads, a few minutes: whether all of it works, and no times. `--plots FOLDER` draws
what the table at the end has. Ends with status 1 where a goal is not met, or answers of set-ups differ.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bench import (
    engine_overhead,
    serving_blocks,
    serving_chats,
    serving_disk,
    serving_memory,
    serving_prompt,
    serving_throughput,
    serving_unpaying,
)
from bench.report import Row, add_options, tell
from bench.serving_bench import Bench
from bench.serving_plots import check_plots, draw
from bench.serving_rows import table

__all__ = ["PARTS", "main"]

NAME = "serving"


def _overhead(bench: Bench) -> Iterator[Row]:
    """It has the real model alone, and goals of time."""
    return iter(()) if bench.quick else engine_overhead.measure(False)


PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "memory": serving_memory.measure,
    "prompt": serving_prompt.measure,
    "throughput": serving_throughput.measure,
    "disk": serving_disk.measure,
    "unpaying": serving_unpaying.measure,
    "overhead": _overhead,
    "blocks": serving_blocks.measure,
    "chats": serving_chats.measure,
}


def main(flags: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m bench.{NAME}", description=__doc__)
    add_options(parser, NAME)
    parser.add_argument("--part", action="append", choices=PARTS, help="only these")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the table there, SVG and PNG")
    arguments = parser.parse_args(flags)
    if arguments.plots:
        check_plots(arguments.plots)
    bench = Bench(arguments.quick)
    tell(NAME, _measure(bench, arguments), arguments)


def _measure(bench: Bench, arguments: argparse.Namespace) -> Iterator[Row]:
    for name, measure in PARTS.items():
        if not arguments.part or name in arguments.part:
            yield from measure(bench)
    for load, by_setup in bench.seen.items():
        if not arguments.json:
            print(f"\n{table(load, by_setup)}")
        if arguments.plots:
            for path in draw(load, by_setup, arguments.plots):
                if not arguments.json:
                    print(f"drawn: {path}")


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    # So that no server outlives it.
    signal.signal(signal.SIGTERM, _end)
    main()
