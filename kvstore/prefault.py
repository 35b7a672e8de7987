"""Pages of a mapping, put into this process's page table at once.

The first touch of a page that isn't there yet takes most of a microsecond: a copy into new pages is six times
as slow, and a model that writes the KV of a token to them meets a dozen.
"""

import mmap
from contextlib import suppress

__all__ = ["prefault"]

# Of Linux; the module mmap doesn't name it yet.
MADV_POPULATE_WRITE = 23
# Python holds its lock meanwhile: some milliseconds.
PIECE_BYTES = 16 << 20


def prefault(mapped: mmap.mmap) -> None:
    """Of memory that is there already: 60 ms a GiB; else it is made, too. Where the kernel can't do that
    (before 5.14) nothing happens."""
    size_bytes = len(mapped)
    with suppress(OSError):
        for start in range(0, size_bytes, PIECE_BYTES):
            mapped.madvise(MADV_POPULATE_WRITE, start, min(PIECE_BYTES, size_bytes - start))
