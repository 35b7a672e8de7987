"""The thread that brings a journal to disk, so that a slow disk holds nobody up.

What waits for it is bounded; a disk that can't keep up, or is full, ends the journal, not the service.
"""

import logging
import threading
from queue import SimpleQueue

from kvstore.observe.folder import JournalFolder

__all__ = ["SegmentWriter"]

WAITING_BYTES_MAX = 64 << 20

log = logging.getLogger(__name__)


class SegmentWriter:
    """Takes whole records in order. `put` is for one thread."""

    def __init__(self, folder: JournalFolder) -> None:
        self._folder = folder
        self._jobs: SimpleQueue[tuple[bool, bytes] | None] = SimpleQueue()
        # Each counted by one thread only; their difference waits.
        self._put_bytes = 0
        self._done_bytes = 0
        # Set by `put` and by the thread, never taken back: nothing more is taken, or written.
        self._refusing = False
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, data: bytes, *, new_segment: bool) -> bool:
        """False: nothing can be written any more; why was logged."""
        if self._failed or self._refusing:
            return False
        # Whatever its own size: what was found on disk at the start is one record.
        if self._put_bytes - self._done_bytes > WAITING_BYTES_MAX:
            self._refusing = True
            self._warn(f"{WAITING_BYTES_MAX} bytes wait for the disk already")
            return False
        self._put_bytes += len(data)
        self._jobs.put((new_segment, data))
        return True

    def close(self, seconds: float) -> None:
        """What was put is written, if the disk takes it in that time."""
        self._jobs.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            log.warning("the journal in %s hangs: its end may be missing", self._folder.path)

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                new_segment, data = job
                if not self._failed:
                    self._write(data, new_segment)
                self._done_bytes += len(data)
        finally:
            self._folder.close_segment()

    def _write(self, data: bytes, new_segment: bool) -> None:
        try:
            if new_segment:
                self._folder.begin_segment()
            self._folder.append(data)
        except OSError as error:
            self._failed = True
            self._warn(str(error))

    def _warn(self, why: str) -> None:
        log.warning("no more is written to the journal in %s: %s", self._folder.path, why)
