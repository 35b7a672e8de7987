"""Recorded requests for replay, and made ones: each a chain of block ids, with its time and lengths."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.report import ROOT
from kvstore.planner.traces import open_trace

__all__ = ["Request", "Trace", "find_traces", "read_trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`blocks`: ids of the prompt's blocks, int64, head first. An id stands for all before it too."""

    time: float
    prompt_tokens: int
    answer_tokens: int
    blocks: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in the order of their times; ids are below `block_count`."""

    name: str
    requests: Sequence[Request]
    block_count: int

    @property
    def read_count(self) -> int:
        """Blocks that its requests name, all together."""
        return sum(request.blocks.size for request in self.requests)

    def part(self, begin: int, end: int, name: str) -> "Trace":
        return Trace(name=name, requests=self.requests[begin:end], block_count=self.block_count)


def read_trace(path: Path) -> Trace:
    """In any of the planner's formats (docs/planner.md), plain or as `.zst`. TraceInvalid where a line is
    wrong."""
    requests = [
        Request(
            time=read.time,
            prompt_tokens=read.input_tokens,
            answer_tokens=read.output_tokens,
            blocks=np.array(read.block_ids, np.int64),
        )
        for read in open_trace(path).requests()
    ]
    requests.sort(key=lambda request: request.time)
    count = 1 + max((int(request.blocks.max()) for request in requests if request.blocks.size), default=-1)
    return Trace(name=path.name.split(".")[0], requests=requests, block_count=count)


def find_traces(places: Sequence[Path] = ()) -> list[Path]:
    """The files that are named, and those in folders that are; without any, those in `shared/data/traces`
    beside the repository or above it."""
    folders = (parent / "shared" / "data" / "traces" for parent in (ROOT, *ROOT.parents))
    default = [folder for folder in folders if folder.is_dir()][:1]
    files: list[Path] = []
    for place in places or default:
        inside = place.iterdir() if place.is_dir() else [place]
        files += sorted(path for path in inside if path.name.endswith((".jsonl", ".jsonl.zst")))
    return files
