"""A trace in a file: its format found by its first line, its requests read one by one."""

from collections.abc import Iterator
from pathlib import Path

from kvstore.core.errors import TraceInvalid
from kvstore.planner.formats import Format, find_format
from kvstore.planner.lines import read_lines
from kvstore.planner.requests import Request

__all__ = ["FileTrace", "open_trace"]


class FileTrace:
    """Made by `open_trace`. Holds no file open: each pass over its requests opens it anew."""

    def __init__(self, path: Path, format: Format) -> None:
        self._path = path
        self._format = format
        self.name = path.name.removesuffix(".zst").removesuffix(".jsonl")

    @property
    def format(self) -> str:
        """`mooncake`, `turns` or `kvstore`."""
        return self._format.name

    @property
    def block_tokens(self) -> int:
        return self._format.block_tokens

    def requests(self) -> Iterator[Request]:
        """In the order of the file. Raises `TraceInvalid` at the first line that is wrong."""
        lines = read_lines(self._path)
        if self._format.heads:
            next(lines, None)
        first: float | None = None
        for number, line in lines:
            request = self._format.parse(self._path, number, line)
            first = request.time if first is None else first
            self._format.check_span(self._path, number, request, first)
            yield request


def open_trace(path: Path, block_tokens: int | None = None) -> FileTrace:
    """Looks at the first line. `block_tokens` is for Mooncake's format, which doesn't say: 512 else."""
    for number, line in read_lines(path):
        return FileTrace(path, find_format(path, number, line, block_tokens))
    raise TraceInvalid(
        "there is nothing in it", field="trace", value=path, remedy="name a trace with requests"
    )
