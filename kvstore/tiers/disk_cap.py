"""What of the disk's cap is for what: how many slots there may be, and how large the index may grow.

The cap counts all bytes of the folder. Both shares are hard: LMDB can't grow a file beyond its map, and
no segment is made that reaches behind the last slot. So nothing has to look at the disk for the cap to hold.
"""

import mmap

__all__ = ["CAP_BYTES_MIN", "blocks_max", "index_bytes", "segment_slots", "slot_count"]

CAP_BYTES_MIN = 4 << 20
# Lock files, the folder itself.
FOLDER_BYTES = 64 << 10
# Of an index with next to no entries: pages freed by a transaction are used again only two later.
INDEX_BYTES_MIN = (1 << 20) - FOLDER_BYTES
# A block's entry, its time of use and its share of the sessions take 300 bytes in full pages; half-filled
# ones, copies of pages under a transaction and the list of free pages are the rest.
INDEX_SLOT_BYTES = 1024
# What a file system needs to note where a segment's bytes are.
SEGMENT_HEAD_BYTES = 8192
SEGMENT_BYTES_MAX = 1 << 30
SEGMENTS = 16
# One of so many slots is for no block: with a choice of slots, those of a batch lie together in a full tier.
SPARE_ONE_OF = 32


def segment_slots(cap_bytes: int, slot_bytes: int) -> int:
    """Of a folder that is laid out under this cap."""
    return max(1, min(cap_bytes // SEGMENTS, SEGMENT_BYTES_MAX) // slot_bytes)


def slot_count(cap_bytes: int, slot_bytes: int, segment_slots: int, index_file_bytes: int = 0) -> int:
    """`index_file_bytes`: what the index takes already and can't give back, so slots make room for it."""
    heads = -(-cap_bytes // (segment_slots * slot_bytes)) * SEGMENT_HEAD_BYTES
    room = cap_bytes - FOLDER_BYTES - heads
    count = (room - INDEX_BYTES_MIN) // (slot_bytes + INDEX_SLOT_BYTES)
    if index_bytes(count) < index_file_bytes:
        count = (room - index_file_bytes) // slot_bytes
    return max(0, count)


def blocks_max(slots: int) -> int:
    """How many blocks there may be in so many slots."""
    return slots - slots // SPARE_ONE_OF


def index_bytes(slots: int) -> int:
    """The most that the index of so many slots may take; whole pages."""
    return (INDEX_BYTES_MIN + max(0, slots) * INDEX_SLOT_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
