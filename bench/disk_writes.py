"""What is written to disk, and what is read again of it: all turns of sessions, or those worth it.

    python -m bench.disk_writes [--json] [--quick] [--save] [TRACE ...]

Traces are played as `kvstore simulate` plays them, on a machine with three tiers, evicting by worth. TRACE is
a file (docs/planner.md says of which form); without any, those in `shared/data/traces` that `MACHINES` names.
Replays draw nothing, so one round says all; `--quick` plays a part of the conversations. Under "worth" the
reference of each row is the same under "all".
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.report import Row, add_options, make_row, tell
from bench.traces import find_traces
from kvstore.core.types import CPU, DISK, GPU, READ, WRITE
from kvstore.planner.machine import Sizes
from kvstore.planner.plan import Outcome, Rules, play
from kvstore.planner.profile import H200_LLAMA_8B
from kvstore.planner.study import Policies
from kvstore.planner.traces import open_trace
from kvstore.planner.workload import load_workload
from kvstore.policy.choices import DISK_ADMISSIONS

__all__ = ["measure"]

KV_BYTES_PER_TOKEN = 131_072
TERABYTE = 1e12
QUICK_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Planned:
    """Blocks by tier, and the share of the conversations that one machine takes."""

    frames: tuple[int, int, int]
    share: float


# So that the CPU tier holds a minute's blocks or two, and the disk an hour's in part.
MACHINES = {
    "mooncake_conversation": Planned((256, 1_228, 9_830), 0.3),
    "lmcache_agent_smollm2_b16": Planned((8_192, 8_192, 32_768), 1.0),
}
OTHERS = Planned((1_024, 8_192, 65_536), 1.0)


def measure(paths: list[Path], share: float) -> Iterator[Row]:
    for path in paths:
        name = path.name.removesuffix(".zst").removesuffix(".jsonl")
        planned = MACHINES.get(name, OTHERS)
        written: dict[str, dict[str, float]] = {}
        for admission in DISK_ADMISSIONS:
            figures = written[admission] = _figures(_play(path, planned, admission, share))
            for what, value in figures.items():
                reference = written["all"][what] if admission != "all" else None
                sizes = " / ".join(f"{size:,}" for size in planned.frames)
                unit = "TB/day" if what == "written" else "/write" if what.startswith("read") else "hits"
                at = f"{name}, {sizes} blocks, turns to disk: {admission}, {what}"
                yield make_row(at, unit, [value], reference=reference or None)


def _play(path: Path, planned: Planned, admission: str, share: float) -> Outcome:
    workload = load_workload(open_trace(path), planned.share * share)
    gpu, cpu, disk = (size * KV_BYTES_PER_TOKEN * workload.block_tokens for size in planned.frames)
    sizes = Sizes(
        gpu_bytes=gpu,
        cpu_bytes=cpu,
        disk_bytes=disk,
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        block_tokens=workload.block_tokens,
    )
    machine = Policies(eviction="worth", disk_admission=admission).machine(sizes, H200_LLAMA_8B)
    return play(workload, machine, Rules(closed=workload.sessions_named))


def _figures(outcome: Outcome) -> dict[str, float]:
    moved, reads = outcome.bytes_moved, max(1, outcome.blocks_read)
    return {
        "found": outcome.hit_rate,
        "found in GPU": outcome.blocks_found[GPU] / reads,
        "found in CPU": outcome.blocks_found[CPU] / reads,
        "found on disk": outcome.blocks_found[DISK] / reads,
        "written": outcome.disk_write_bytes_per_day / TERABYTE,
        "read of what was written": moved[READ] / moved[WRITE] if moved[WRITE] else 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.disk_writes", description="Writes to disk.")
    add_options(parser, "disk_writes")
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE")
    arguments = parser.parse_args()
    paths = find_traces(arguments.traces)
    if not arguments.traces:
        paths = [path for path in paths if path.name.removesuffix(".zst").removesuffix(".jsonl") in MACHINES]
    if not paths:
        parser.error("no traces: name files, or folders of them")
    tell("disk_writes", measure(paths, QUICK_SHARE if arguments.quick else 1.0), arguments)


if __name__ == "__main__":
    main()
