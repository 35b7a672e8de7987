"""Lines of a trace file, plain or compressed with zstandard. Of the file one line at a time is held."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from kvstore.core.errors import TraceInvalid

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

try:
    import zstandard
except ImportError:
    # Without the extra `traces` plain files can be read all the same.
    ZSTD_ERRORS: tuple[type[Exception], ...] = ()
else:
    ZSTD_ERRORS = (zstandard.ZstdError,)

__all__ = ["LINE_BYTES_MAX", "read_lines"]

# A prompt of 16 million tokens in blocks of 16 takes less.
LINE_BYTES_MAX = 16 << 20
BUFFER_BYTES = 1 << 20
# So little that what comes of it stays small, however well it was compressed.
COMPRESSED_BYTES = 4 << 10


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The number of each line, from 1, and the line. Lines that are blank are passed over."""
    with _open(path) as file:
        number = 0
        while line := _read_line(path, file, number + 1):
            number += 1
            if not line.isspace():
                yield number, line


def _read_line(path: Path, file: BinaryIO, number: int) -> bytes:
    try:
        line = file.readline(LINE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except ZSTD_ERRORS as error:
        raise TraceInvalid(
            f"line {number} can't be decompressed: {error}",
            field="trace",
            value=path,
            remedy="fetch the file again; it was cut or is no zstandard",
        ) from error
    if len(line) > LINE_BYTES_MAX:
        raise TraceInvalid(
            f"line {number} is longer than {LINE_BYTES_MAX >> 20} MiB",
            field="trace",
            value=path,
            remedy="write one request a line",
        )
    return line


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    with file:
        if path.suffix != ".zst":
            yield file
            return
        if not ZSTD_ERRORS:
            raise TraceInvalid(
                "a compressed trace needs the package zstandard",
                field="trace",
                value=path,
                remedy="pip install 'kvstore[traces]', or decompress it: zstd -d",
            )
        with io.BufferedReader(_Decompressed(file), BUFFER_BYTES) as lines:
            yield lines


class _Decompressed(io.RawIOBase):
    """The content of zstandard frames, one after another. A last one that was cut is an error here. It would
    be none for the package's own reader: a trace that was fetched in part would look like a shorter one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False
        # Of the file, not yet decompressed; and decompressed, not yet taken.
        self._compressed = b""
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        target = memoryview(buffer).cast("B")
        while not self._content:
            if not (data := self._compressed or self._file.read(COMPRESSED_BYTES)):
                if self._begun:
                    raise zstandard.ZstdError("the file ends in the middle of a frame")
                return 0
            self._content = memoryview(self._frame.decompress(data))
            self._compressed, self._begun = b"", True
            if self._frame.eof:
                self._compressed = self._frame.unused_data
                self._frame, self._begun = zstandard.ZstdDecompressor().decompressobj(), False
        count = min(len(target), len(self._content))
        target[:count] = self._content[:count]
        self._content = self._content[count:]
        return count


def _unreadable(path: Path, why: str) -> TraceInvalid:
    return TraceInvalid(why, field="trace", value=path, remedy="name a trace: a .jsonl, or a .jsonl.zst")
