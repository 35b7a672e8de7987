"""The core in its own process, beside the allocators that stand inside engines.

    BENCH_VLLM=FOLDER python -m bench.core [--json] [--quick] [--save]

FOLDER is a virtual environment of its own for vLLM and nano-vllm, made on demand; with it they are timed in
turns with the core. Without it, the ratios are to the figures that were taken when the goals were set. Each
row names what it is compared with. Sequences are freed with no work in flight unless the row says otherwise,
so the time to free holds all that follows from it. nano-vllm hashes and publishes where it allocates; it is
the release of a fork, which forgets a block's hash when nobody holds it any more. Eviction is by LRU, which
all of them have; what the service's default, which learns, adds to it stands in rows of its own.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, TypeVar

from bench.core_cases import BATCH, CoreCases
from bench.core_sizes import make_disk, memory_per_block, seconds_to_start
from bench.driven import PROMPT_BLOCKS
from bench.reference import Reference, open_reference
from bench.report import Row, main, make_row

P = ParamSpec("P")
Answer = TypeVar("Answer")

ROUNDS, ROUNDS_QUICK = 7, 3
BLOCKS, BLOCKS_QUICK = 1_000_000, 100_000
BYTES_MAX, START_SECONDS_MAX = 300, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`figure`: vLLM's, in the unit of the row, for where it can't be timed."""

    name: str
    ours: Callable[[], float]
    theirs: tuple[str, ...] = ()
    per_second: int = 0
    in_milliseconds: bool = False
    goal: float | None = None
    figure: float | None = None

    @property
    def unit(self) -> str:
        if self.per_second:
            return "/s"
        return "ms" if self.in_milliseconds else "us"

    def in_unit(self, seconds: float) -> float:
        if self.per_second:
            return self.per_second / seconds
        return seconds * (1e3 if self.in_milliseconds else 1e6)


CASES = (
    Case(
        name="take and free 256 blocks: blocks",
        ours=lambda: CoreCases().take_and_free_rows(),
        theirs=("vllm take and free", "nano-vllm take and free"),
        per_second=BATCH,
        goal=10e6,
        figure=2.2e6,
    ),
    Case(
        name="the same in two steps, as a sequence: blocks",
        ours=lambda: CoreCases().take_and_free(),
        per_second=BATCH,
    ),
    Case(
        name="admit 4,096 tokens, nothing cached: find, take, table",
        ours=lambda: CoreCases().admit_uncached(),
        theirs=("vllm admit, nothing cached",),
        goal=60,
    ),
    Case(
        name="the same, and publish its 256 blocks",
        ours=lambda: CoreCases().admit_and_publish(),
        theirs=("vllm admit and publish", "nano-vllm admit, nothing cached"),
        figure=346,
    ),
    Case(
        name="the same, where 256 cached blocks have to go for it",
        ours=lambda: CoreCases().admit_evicting(),
        theirs=("vllm admit and publish, evicting",),
    ),
    Case(
        name="the same, and which ones is said by what was learned",
        ours=lambda: CoreCases("worth").admit_evicting(),
    ),
    Case(
        name="admit 4,096 tokens, all cached",
        ours=lambda: CoreCases().admit_cached(),
        theirs=("vllm admit, all cached", "nano-vllm admit, all cached"),
        goal=80,
        figure=284,
    ),
    Case(
        name="free 4,096 tokens, which stay cached",
        ours=lambda: CoreCases().free_cached(),
        theirs=("vllm free", "nano-vllm free"),
        goal=10,
        figure=42,
    ),
    Case(
        name="the same with one step in flight, and the step in which it takes effect",
        ours=lambda: CoreCases().free_cached(in_flight=1),
    ),
    Case(
        name="free 4,096 tokens, which stay cached, and what it used is learned of",
        ours=lambda: CoreCases("worth").free_cached(),
    ),
    Case(name="a step of nothing", ours=lambda: CoreCases().empty_step()),
    Case(
        name="step: 256 run, the 16 that cross a block ask",
        ours=lambda: CoreCases().step_growing(),
        theirs=("vllm step", "nano-vllm step"),
        goal=60,
    ),
    Case(
        name="the same, in columns",
        ours=lambda: CoreCases().step_growing_in_columns(),
        theirs=("vllm step", "nano-vllm step"),
    ),
    Case(
        name="the 16, and publish the blocks that they have filled",
        ours=lambda: CoreCases().step_growing_publishing(),
        theirs=("vllm step and publish",),
        figure=1_800,
    ),
    Case(
        name="step: 256 run, all ask, 16 cross a block",
        ours=lambda: CoreCases().step_asking(),
        theirs=("vllm step",),
    ),
    Case(
        name="free 256 sequences of 300 blocks in one step",
        ours=lambda: CoreCases().free_many(),
        theirs=("vllm free many", "nano-vllm free many"),
        in_milliseconds=True,
        goal=10,
    ),
    Case(
        name="the same, of blocks that stay cached",
        ours=lambda: CoreCases().free_many_cached(),
        in_milliseconds=True,
    ),
    Case(
        name="the same, and what each used is learned of",
        ours=lambda: CoreCases("worth").free_many_cached(),
        in_milliseconds=True,
    ),
    Case(
        name="block keys of 4,096 tokens, in a list: keys",
        ours=lambda: CoreCases().keys(),
        theirs=("vllm keys",),
        per_second=PROMPT_BLOCKS,
        goal=1.3e6,
        figure=0.6e6,
    ),
)


def measure(quick: bool) -> Iterator[Row]:
    folder = os.environ.get("BENCH_VLLM", "")
    with ExitStack() as stack:
        reference = stack.enter_context(open_reference(Path(folder))) if folder else None
        if reference is None:
            print("vLLM is not re-timed: BENCH_VLLM names no folder for its environment", file=sys.stderr)
        for case in CASES:
            yield from _rows(case, reference, ROUNDS_QUICK if quick else ROUNDS)
    yield from _size_rows(BLOCKS_QUICK if quick else BLOCKS, 1 if quick else 3)


def _rows(case: Case, reference: Reference | None, rounds: int) -> list[Row]:
    """One a reference: the goal stands in the first."""
    ours: list[float] = []
    theirs: dict[str, list[float]] = {}
    for _ in range(rounds):
        ours.append(case.in_unit(case.ours()))
        for name in case.theirs:
            engine = name.split()[0]
            if reference is not None and engine in reference.versions:
                label = f"{engine} {reference.versions[engine]}"
                theirs.setdefault(label, []).append(case.in_unit(reference.seconds(name)))
    references: dict[str, Sequence[float] | float | None] = {**theirs}
    if not references:
        references = {"figure of vllm 0.32.0" if case.figure else "": case.figure}
    return [
        make_row(
            f"{case.name} [{label}]" if label else case.name,
            case.unit,
            ours,
            reference=samples,
            at_least=case.goal if case.per_second and not number else None,
            at_most=case.goal if not case.per_second and not number else None,
        )
        for number, (label, samples) in enumerate(references.items())
    ]


def _size_rows(blocks: int, rounds: int) -> list[Row]:
    """The goals are those for a million blocks."""
    full = blocks == BLOCKS
    with TemporaryDirectory() as folder:
        disk = Path(folder) / "disk"
        memory, learning = (_apart(memory_per_block, blocks, each) for each in ("lru", "worth"))
        _apart(make_disk, disk, blocks)
        starts = [_apart(seconds_to_start, disk, blocks) for _ in range(rounds)]
    name = f"start with {blocks:,} blocks on disk"
    return [
        make_row(
            f"memory of the core a block, at {blocks:,} cached blocks",
            "bytes",
            [memory],
            at_most=BYTES_MAX if full else None,
        ),
        make_row("the same, with all that is learned", "bytes", [learning]),
        make_row(name, "s", [sum(each) for each in starts], at_most=START_SECONDS_MAX if full else None),
        make_row(f"{name}: the index is checked", "s", [check for check, _, _ in starts]),
        make_row(f"{name}: the disk tier is opened and read", "s", [disk for _, disk, _ in starts]),
        make_row(f"{name}: the core is told of them", "s", [core for _, _, core in starts]),
    ]


def _apart(call: Callable[P, Answer], *arguments: P.args, **named: P.kwargs) -> Answer:
    """In a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(call, *arguments, **named).result()


if __name__ == "__main__":
    main("core", __doc__, measure)
