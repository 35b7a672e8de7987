"""The demo with engines and GPU tier on the GPU: conversations through all tiers, an engine killed in one."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from bench.gpu_place import Place
from bench.report import ROOT, Row, make_row

__all__ = ["measure", "rows_of"]


def measure(place: Place, quick: bool) -> Iterator[Row]:
    model = "smollm2" if place.is_gpu and not quick else "tiny"
    command = [sys.executable, "-m", "kvstore", "demo", "--json", "--model", model, "--device", place.name]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    lines = run.stdout.splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise SystemExit(f"the demo has ended with status {run.returncode}")
    yield from rows_of(json.loads(lines[-1]))


def rows_of(report: Mapping[str, Any]) -> Iterator[Row]:
    """`report`: as `kvstore demo --json` ends with."""
    turns = report["turns"]
    equal = sum(turn["equal"] or turn["near_tie"] for turn in turns)
    yield make_row(
        "demo: turns answered as without kvstore, or parting at a near tie",
        "",
        [float(equal)],
        at_least=len(turns),
    )
    yield make_row("demo: near ties", "", [float(sum(turn["near_tie"] for turn in turns))], at_most=1)
    yield make_row(
        "demo: blocks that came back with other bytes", "", [float(report["blocks_wrong"])], at_most=0
    )
    yield make_row("demo: blocks proven by their digests", "", [float(report["blocks_verified"])], at_least=1)
    warm = [turn for turn in turns if turn["turn"] > 1]
    yield make_row(
        "demo: time to the first token, later turns [without kvstore]",
        "ms",
        [turn["ttft_ms"] for turn in warm],
        reference=[turn["ttft_plain_ms"] for turn in warm],
    )
