"""The journal of one run of a store: every event that enters `handle`, with what came of it.

Whoever has a store handle an event writes it down after that. Whatever happens to the journal, the store
never notices.
"""

import logging

from msgspec import structs

from kvstore.core.effects import Effects
from kvstore.core.events import Event, Tick
from kvstore.observe.codec import encode
from kvstore.observe.folder import JournalFolder
from kvstore.observe.framing import RECORD_BYTES_MAX, frame
from kvstore.observe.records import Entry, Failure, Heading, Record, outcome_of
from kvstore.observe.writing import SegmentWriter

__all__ = ["JOURNAL_BYTES_MIN", "Journal"]

# The ring loses one segment at a time: with eight of them, at least seven eighths are kept.
SEGMENTS = 8
JOURNAL_BYTES_MIN = 1 << 20
# Ten ticks a second bring what has gathered to the thread that writes, or this much does.
GATHERED_BYTES = 64 << 10
CLOSE_SECONDS = 5.0

log = logging.getLogger(__name__)


class Journal:
    """One run, from the first event of its store on. A folder takes one at a time."""

    def __init__(self, folder: JournalFolder, heading: Heading) -> None:
        self.path = folder.path
        self._heading = heading
        self._writer = SegmentWriter(folder)
        self._on = True
        self._segment_bytes_max = folder.bytes_max // SEGMENTS
        self._segment_bytes = self._segment_bytes_max
        self._next = heading.first_entry
        # Records that the writer doesn't have yet, the number of the first, and their bytes.
        self._gathered: list[bytes] = []
        self._gathered_first = self._next
        self._gathered_bytes = 0

    @property
    def count(self) -> int:
        """Entries so far."""
        return self._next - self._heading.first_entry

    def write(self, event: Event, result: Effects | Exception) -> None:
        """An event, and its effects or what `handle` raised."""
        if not self._on:
            return
        outcome = outcome_of(result)
        self._gather(Entry(number=self._next, event=event, outcome=outcome))
        self._next += 1
        if (
            type(event) is Tick
            or self._gathered_bytes >= GATHERED_BYTES
            # The store's last event: the process may end any moment.
            or type(outcome) is Failure
        ):
            self.flush()

    def flush(self) -> None:
        """Hands what has gathered to the writer, in a new segment where the last one is full."""
        if not self._on or not self._gathered:
            return
        new_segment = self._segment_bytes >= self._segment_bytes_max
        if new_segment:
            heading = structs.replace(self._heading, first_entry=self._gathered_first)
            self._gathered.insert(0, frame(encode(heading)))
            self._segment_bytes = 0
        data = b"".join(self._gathered)
        self._segment_bytes += len(data)
        self._gathered.clear()
        self._gathered_first, self._gathered_bytes = self._next, 0
        self._on = self._writer.put(data, new_segment=new_segment)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Waits for the disk. What is written after this is passed over."""
        self.flush()
        self._on = False
        self._writer.close(seconds)

    def _gather(self, record: Record) -> None:
        try:
            data = encode(record)
            if len(data) > RECORD_BYTES_MAX:
                raise ValueError(f"{len(data)} bytes in one record")
        except Exception as error:
            # Not worth the service, whatever it is: a number out of the format's range, say.
            self.flush()
            self._on = False
            log.warning("no more is written to the journal in %s: %s", self.path, error, exc_info=error)
            return
        self._gathered.append(frame(data))
        self._gathered_bytes += len(data)
