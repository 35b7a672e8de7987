"""A journal read back: its segments sorted into runs, its entries one by one.

A run is what one store saw. It can be replayed if its first entry is still there. What the writer did not
live to finish at the end of a run is left out and told; a gap before that is refused, and so is damage.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from kvstore.core.errors import JournalInvalid, plural
from kvstore.observe.codec import Undecodable, decode
from kvstore.observe.folder import find_segments
from kvstore.observe.framing import Frames, journal_invalid
from kvstore.observe.records import FORMAT, Entry, Heading

__all__ = ["Run", "find_headless", "find_runs"]


@dataclass(slots=True)
class Run:
    """`torn` is known when all entries were read: file and bytes of the unfinished end."""

    heading: Heading
    segments: list[Path]
    torn: str = field(default="")

    @property
    def whole(self) -> bool:
        """Whether its beginning is there."""
        return self.heading.first_entry == 1

    def entries(self) -> Iterator[Entry]:
        expected = self.heading.first_entry
        self.torn = ""
        for path in self.segments:
            for offset, entry in self._read(path):
                if entry.number != expected:
                    raise journal_invalid(
                        path,
                        f"entry {expected} is missing: entry {entry.number} follows at offset {offset}",
                        "name one segment alone, for its stories",
                    )
                yield entry
                expected += 1

    def _read(self, path: Path) -> Iterator[tuple[int, Entry]]:
        with _open(path) as file:
            frames = Frames(file, path, os.fstat(file.fileno()).st_size)
            for offset, data in frames:
                record = _decode(path, offset, data)
                if isinstance(record, Entry):
                    yield offset, record
                elif offset:
                    raise journal_invalid(path, f"a second heading at offset {offset}", "use a copy")
        if frames.torn_bytes:
            self.torn = f"{path.name} ends in {plural(frames.torn_bytes, 'byte')} of an unfinished record"


def find_runs(path: Path) -> list[Run]:
    """Of a folder of segments, or of one segment alone; oldest first."""
    runs: list[Run] = []
    for segment in _segments(path):
        heading = _read_heading(segment)
        if heading is None:
            continue
        if runs and runs[-1].heading.store_epoch == heading.store_epoch and heading.first_entry > 1:
            runs[-1].segments.append(segment)
        else:
            runs.append(Run(heading, [segment]))
    return runs


def find_headless(path: Path) -> list[Path]:
    """Segments that belong to no run: their writers did not come as far as the heading."""
    return [segment for segment in _segments(path) if _read_heading(segment) is None]


def _segments(path: Path) -> list[Path]:
    try:
        return find_segments(path) if path.is_dir() else [path]
    except OSError as error:
        raise _unreadable(path, error) from error


def _read_heading(path: Path) -> Heading | None:
    """None: its writer did not come so far."""
    with _open(path) as file:
        for offset, data in Frames(file, path, os.fstat(file.fileno()).st_size):
            record = _decode(path, offset, data)
            if not isinstance(record, Heading):
                raise journal_invalid(path, "does not begin with a heading", "name a whole segment")
            if record.format != FORMAT:
                raise journal_invalid(
                    path,
                    f"format {record.format}, and this version reads {FORMAT}",
                    f"use version {record.build}",
                )
            return record
    return None


def _open(path: Path) -> BinaryIO:
    """Only a regular file: others have no end, or make who opens them wait for a writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(path, error) from error
    file = os.fdopen(descriptor, "rb")
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return file
    file.close()
    raise journal_invalid(path, "is no regular file", "name a journal's folder, or one segment in it")


def _unreadable(path: Path, error: OSError) -> JournalInvalid:
    return journal_invalid(
        path, error.strerror or str(error), "name a journal's folder, or one segment in it"
    )


def _decode(path: Path, offset: int, data: bytes) -> Heading | Entry:
    try:
        return decode(data)
    except Undecodable as error:
        raise _unknown(path, offset, error) from error


def _unknown(path: Path, offset: int, error: Undecodable) -> JournalInvalid:
    found = f"the record at offset {offset} is none that this version knows: {error}"
    return journal_invalid(path, found, "use the version that wrote it")
