"""How fast the planner plays recorded traces, in seconds of one core.

    python -m bench.planner [--json] [--quick] [--save] [TRACE ...]

TRACE is a file (docs/planner.md says of which form), or a folder of them; without any, `shared/data/traces`
beside the repository or above it. Each is played on one tier, by LRU and by worth, and on three; with
`--quick` a fifth of its conversations, on smaller tiers. A second is one of the processor's, not of the
clock: what else runs on the machine counts for little. What the machine can do counts for much. So beside
each figure of one tier stands, from the same run, that of a bare LRU on the same prompts: a dict, which
knows of no time, no engine and no answers.
"""

import argparse
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from bench.report import Row, add_options, make_row, tell
from bench.traces import find_traces
from kvstore.core.types import GPU
from kvstore.planner.machine import Sizes
from kvstore.planner.plan import Outcome, Rules, play
from kvstore.planner.profile import H200_LLAMA_8B
from kvstore.planner.study import Policies
from kvstore.planner.traces import open_trace
from kvstore.planner.workload import Workload, load_workload

KV_BYTES_PER_TOKEN = 131_072
# Of the blocks that a trace's prompts name, each counted once: the tier that is alone, and of three each.
ALONE, TIERS = 1 / 40, (1 / 256, 1 / 40, 1 / 5)
# The longest prompt has to fit, and some more run beside it.
PROMPTS_MIN = 4
READS_PER_SECOND, REQUESTS_PER_MINUTE = 60_000, 5_000
# By LRU on one tier, where a round takes seconds; all else is played once, and takes minutes.
ROUNDS = 3
# Of the conversations, for a look.
SHARE_QUICK = 0.2


def measure(paths: Sequence[Path], *, quick: bool) -> Iterator[Row]:
    for path in paths:
        workload = load_workload(open_trace(path), SHARE_QUICK if quick else 1.0)
        if quick:
            workload = replace(workload, name=f"a fifth of {workload.name}")
        alone, three = (sizes_of(workload, shares) for shares in ((ALONE,), TIERS))
        for policy, rounds in (("lru", 1 if quick else ROUNDS), ("worth", 1)):
            pairs = [
                (reads_per_second(workload, alone, policy), bare_reads_per_second(workload, alone))
                for _ in range(rounds)
            ]
            ours, bare = zip(*pairs, strict=True)
            goal, name = READS_PER_SECOND if policy == "lru" else None, named(workload, alone, policy)
            yield make_row(name, "reads/s", ours, reference=bare, at_least=goal)
        samples = [requests_per_minute(workload, three, "worth")]
        yield make_row(named(workload, three, "worth"), "requests/min", samples, at_least=REQUESTS_PER_MINUTE)


def sizes_of(workload: Workload, shares: Sequence[float]) -> Sizes:
    """Of one tier, or of three."""
    blocks = len({block for turn in workload.turns for block in turn.prompt})
    longest = max(turn.blocks(workload.block_tokens) for turn in workload.turns)
    block_bytes = KV_BYTES_PER_TOKEN * workload.block_tokens
    gpu, *below = (max(PROMPTS_MIN * longest, round(share * blocks)) * block_bytes for share in shares)
    cpu, disk = below or (0, 0)
    return Sizes(
        gpu_bytes=gpu,
        cpu_bytes=cpu,
        disk_bytes=disk,
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        block_tokens=workload.block_tokens,
    )


def named(workload: Workload, sizes: Sizes, policy: str) -> str:
    tiers = " / ".join(f"{frames:,}" for frames in sizes.frames if frames)
    return f"{workload.name}, {tiers} blocks, {policy}"


def reads_per_second(workload: Workload, sizes: Sizes, policy: str) -> float:
    seconds, outcome = played(workload, sizes, policy)
    return outcome.blocks_read / seconds


def bare_reads_per_second(workload: Workload, sizes: Sizes) -> float:
    prompts = [turn.prompt for turn in workload.turns]
    start = time.process_time()
    find_bare(prompts, sizes.frames[GPU])
    return sum(map(len, prompts)) / (time.process_time() - start)


def find_bare(prompts: Iterable[Sequence[int]], capacity: int) -> int:
    """How many blocks a bare LRU finds behind an unbroken prefix, prompt by prompt."""
    kept: OrderedDict[int, None] = OrderedDict()
    found = 0
    for prompt in prompts:
        found += sum(1 for _ in takewhile(kept.__contains__, prompt))
        # From tail to head, so that a child goes before its parent.
        for block in reversed(prompt):
            kept[block] = None
            kept.move_to_end(block)
        for _ in range(len(kept) - capacity):
            kept.popitem(last=False)
    return found


def requests_per_minute(workload: Workload, sizes: Sizes, policy: str) -> float:
    seconds, _ = played(workload, sizes, policy)
    return 60 * len(workload.turns) / seconds


def played(workload: Workload, sizes: Sizes, policy: str) -> tuple[float, Outcome]:
    """Seconds of the processor, and what came of it."""
    machine = Policies(eviction=policy).machine(sizes, H200_LLAMA_8B)
    start = time.process_time()
    outcome = play(workload, machine, Rules(closed=workload.sessions_named))
    return time.process_time() - start, outcome


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.planner", description="The planner's speed on recorded traces."
    )
    parser.add_argument("trace", nargs="*", type=Path, help="files, or folders of them")
    add_options(parser, "planner")
    arguments = parser.parse_args()
    paths = find_traces(arguments.trace)
    if not paths:
        parser.error("no traces: name files or folders")
    tell("planner", measure(paths, quick=arguments.quick), arguments)


if __name__ == "__main__":
    _main()
