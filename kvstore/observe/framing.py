"""Records one after the other in a file: a head of twelve bytes, then the record.

The head holds the length, a check of the length and a check of the record. So a length that was damaged
is told from one whose record the writer did not live to finish, and nothing is read by a wrong length.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from xxhash import xxh32_intdigest

from kvstore.core.errors import JournalInvalid

__all__ = ["RECORD_BYTES_MAX", "Frames", "frame", "journal_invalid"]

HEAD = struct.Struct("<III")
LENGTH = struct.Struct("<I")
# What protobuf takes is less than 2 GiB. A million blocks found on disk are a tenth of this.
RECORD_BYTES_MAX = 1 << 30
CHUNK_BYTES = 1 << 20


def journal_invalid(path: Path, found: str, remedy: str) -> JournalInvalid:
    return JournalInvalid(found, field="journal", value=path, remedy=remedy)


def frame(record: bytes) -> bytes:
    length = len(record)
    return HEAD.pack(length, xxh32_intdigest(LENGTH.pack(length)), xxh32_intdigest(record)) + record


class Frames:
    """The records of a file with their offsets. After the last one, `torn_bytes` says how much of an
    unfinished one follows: what is left when the writer was killed."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self.torn_bytes = 0
        self._file = file
        self._path = path
        self._size = size

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        offset = 0
        while offset < self._size:
            left = self._size - offset
            head = self._file.read(HEAD.size)
            torn = left < HEAD.size or (offset and not any(head) and self._only_zeros())
            length = left if torn else self._length(head, offset)
            if HEAD.size + length > left:
                self.torn_bytes = left
                return
            record = self._file.read(length)
            self._check(record, head, offset)
            yield offset, record
            offset += HEAD.size + length

    def _only_zeros(self) -> bool:
        """A file system that lost its power may have given the file a length, but no bytes yet."""
        return not any(any(chunk) for chunk in iter(lambda: self._file.read(CHUNK_BYTES), b""))

    def _length(self, head: bytes, offset: int) -> int:
        length, length_check, _ = HEAD.unpack(head)
        if length > RECORD_BYTES_MAX or length_check != xxh32_intdigest(head[: LENGTH.size]):
            found = "not a journal" if offset == 0 else f"damaged at offset {offset}: the length of a record"
            raise journal_invalid(self._path, found, "use a copy, or name another segment alone")
        return int(length)

    def _check(self, record: bytes, head: bytes, offset: int) -> None:
        if HEAD.unpack(head)[2] != xxh32_intdigest(record):
            raise journal_invalid(
                self._path,
                f"damaged at offset {offset}: a record of {len(record)} bytes",
                "use a copy, or name another segment alone",
            )
