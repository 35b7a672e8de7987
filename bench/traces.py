"""Recorded requests for replay, and made ones: each a chain of block ids, with its time and lengths."""

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

__all__ = ["Request", "Trace", "read_trace"]


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
    """A trace of Mooncake's form (`timestamp` in ms, `input_length`, `output_length`, `hash_ids`), or of
    sessions' (`ts` in s, `in`, `out`, `hash_ids`), one request a line; plain, or as `.zst`."""
    with path.open("rb") as file:
        source = zstandard.ZstdDecompressor().stream_reader(file) if path.suffix == ".zst" else file
        records = [json.loads(line) for line in io.TextIOWrapper(source, "utf-8")]
    requests = [_request(record) for record in records if "hash_ids" in record]
    count = 1 + max((int(request.blocks.max()) for request in requests if request.blocks.size), default=-1)
    return Trace(name=path.name.split(".")[0], requests=_in_order(requests), block_count=count)


def _request(record: dict[str, object]) -> Request:
    milliseconds, seconds = record.get("timestamp"), record.get("ts")
    return Request(
        time=float(str(milliseconds)) / 1000 if milliseconds is not None else float(str(seconds)),
        prompt_tokens=int(str(record.get("input_length", record.get("in", 0)))),
        answer_tokens=int(str(record.get("output_length", record.get("out", 0)))),
        blocks=np.array(record["hash_ids"], np.int64),
    )


def _in_order(requests: Iterable[Request]) -> list[Request]:
    return sorted(requests, key=lambda request: request.time)
