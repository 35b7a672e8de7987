"""The index as it is found at the start, in columns: a million entries in less than a second.

What makes an entry a good one is said in disk_format.py. Here that is asked of thousands together, in
a few calls of numpy and a checksum each. Where not all of them pass, each is looked at by itself.
How blocks hang together is not covered here, but in disk_order.py.
"""

from collections.abc import Iterator
from itertools import compress, islice
from operator import lt
from typing import Any

import numpy as np
import xxhash
from msgspec import Struct
from numpy.typing import NDArray

from kvstore.core.stored import StoredBlocks
from kvstore.core.types import BlockKey
from kvstore.tiers.disk_format import ENTRY_VERSION, OWNER_MAX, SUM_BYTES, BlockEntry
from kvstore.tiers.names import ID_MAX

__all__ = ["FoundBlocks", "Places", "read_index"]

# Where blocks stand among those that were found.
Places = NDArray[np.intp]

# As many as stay in the processor's cache while they are looked at.
PIECE = 4096
KEY_WORDS = 4

_NAME = [("namespace", ">u4"), ("tenant", ">u4"), ("key", "V32")]
_FIELDS = [
    ("version", "u1"),
    ("segment", ">u4"),
    ("slot", ">u4"),
    ("size", ">u8"),
    ("parent", "V32"),
    ("checksum", "V16"),
    ("writer", ">u4"),
    ("created_ns", ">u8"),
    ("owner", ">u8"),
]
NAME_BYTES, FIELDS_BYTES = np.dtype(_NAME).itemsize, np.dtype(_FIELDS).itemsize
RECORD_BYTES = FIELDS_BYTES + SUM_BYTES
_BEFORE_NAME = np.void(b"blocks" + NAME_BYTES.to_bytes(4))
_BEFORE_FIELDS = np.void(FIELDS_BYTES.to_bytes(4))
# A row is what the checksum of an entry covers, in this order, and the checksum.
_ROW = np.dtype([("before_name", "V10"), *_NAME, ("before_fields", "V4"), *_FIELDS, ("sum", "V16")])
_PARTS = np.dtype(
    [
        ("before_name", "V10"),
        ("name", f"V{NAME_BYTES}"),
        ("before_fields", "V4"),
        ("record", f"V{RECORD_BYTES}"),
    ]
)
_COVERED = np.dtype([("covered", f"V{_ROW.itemsize - SUM_BYTES}"), ("sum", f"V{SUM_BYTES}")])


class FoundBlocks(Struct, frozen=True, kw_only=True):
    """Columns, in step. A key is a row of words: to be compared with others, not to be reckoned with."""

    namespace: NDArray[np.uint32]
    tenant: NDArray[np.uint32]
    key: NDArray[np.uint64]
    # All zeros for the first block of a chain. In the block's own namespace and tenant.
    parent: NDArray[np.uint64]
    writer: NDArray[np.uint32]
    segment: NDArray[np.uint32]
    slot: NDArray[np.uint32]
    size: NDArray[np.uint64]
    created_ns: NDArray[np.uint64]
    owner: NDArray[np.uint64]

    def __len__(self) -> int:
        return self.namespace.size

    def take(self, places: Places | NDArray[np.bool_] | slice) -> "FoundBlocks":
        # Keys as wholes: to take them word by word takes twice as long.
        columns = {name: _digests(getattr(self, name))[places] for name in self.__struct_fields__}
        return FoundBlocks(**{name: _words(column) for name, column in columns.items()})

    def names(self) -> list[bytes]:
        return self._names(self.key)

    def parent_names(self) -> list[bytes]:
        """Of those that have one."""
        return self._names(self.parent)

    def is_parent(self, candidates: Places, children: Places) -> NDArray[np.bool_]:
        """Whether the ones are what the others hang on."""
        keys = _words(_digests(self.key)[candidates])
        wanted = _words(_digests(self.parent)[children])
        is_it: NDArray[np.bool_] = self.namespace[candidates] == self.namespace[children]
        is_it &= self.tenant[candidates] == self.tenant[children]
        for word in range(KEY_WORDS):
            is_it &= keys[:, word] == wanted[:, word]
        return is_it

    def stored(self, places: Places, parents: Places) -> StoredBlocks:
        """The blocks at these places. `parents` tells where the parent of each stands then, or NO_PLACE."""
        keys: list[BlockKey] = _digests(self.key)[places].tolist()
        return StoredBlocks(
            keys=keys,
            parents=parents,
            domains=self.namespace[places].astype(np.int64) << 32 | self.tenant[places],
            writers=self.writer[places],
            owners=self.owner[places].astype(np.int64),
        )

    def _names(self, keys: NDArray[np.uint64]) -> list[bytes]:
        rows = np.empty(len(self), _NAME)
        rows["namespace"], rows["tenant"], rows["key"] = self.namespace, self.tenant, _digests(keys)
        names: list[bytes] = rows.view(f"V{NAME_BYTES}").tolist()
        return names


_COLUMNS = {
    name: np.dtype(code).newbyteorder("=")
    for name, code in [*_NAME, *_FIELDS]
    if name in FoundBlocks.__struct_fields__
}


def read_index(
    names: Iterator[bytes], records: Iterator[bytes], count: int = 0
) -> tuple[FoundBlocks, list[bytes]]:
    """The good entries, and the names of those that can't be read. `count`: how many there should be."""
    found, bad = _room_for(count), list[bytes]()
    last, done, ascending = b"", 0, True
    while piece := list(islice(names, PIECE)):
        ascending &= last < piece[0] and all(map(lt, piece, islice(piece, 1, None)))
        last = piece[-1]
        rows = _read_piece(piece, list(islice(records, PIECE)), bad)
        if done + rows.size > len(found):
            found = _longer(found, max(done, rows.size))
        _fill(found, done, rows)
        done += rows.size
    found = found.take(slice(done))
    if not ascending:
        # A damaged tree can lead to one page twice.
        places = {name: place for place, name in enumerate(found.names())}
        found = found.take(np.array(list(places.values()), np.intp))
    return found, bad


def _read_piece(names: list[bytes], records: list[bytes], bad: list[bytes]) -> NDArray[np.void]:
    """Rows of the good ones."""
    rows = _join(names, records)
    if rows.size == len(names) and _all_good(rows):
        return rows
    good = [_is_good(name, record) for name, record in zip(names, records, strict=True)]
    bad += [name for name, is_good in zip(names, good, strict=True) if not is_good]
    return _join(list(compress(names, good)), list(compress(records, good)))


def _join(names: list[bytes], records: list[bytes]) -> NDArray[np.void]:
    """None where they can't all be as long as they should. (If only together they are, their checksums, which
    cover the lengths, are wrong.)"""
    joined_names, joined_records = b"".join(names), b"".join(records)
    count = len(names)
    if (len(joined_names), len(joined_records)) != (count * NAME_BYTES, count * RECORD_BYTES):
        return np.empty(0, _ROW)
    rows = np.empty(count, _PARTS)
    rows["before_name"], rows["name"] = _BEFORE_NAME, np.frombuffer(joined_names, f"V{NAME_BYTES}")
    rows["before_fields"], rows["record"] = _BEFORE_FIELDS, np.frombuffer(joined_records, f"V{RECORD_BYTES}")
    return rows.view(_ROW)


def _all_good(rows: NDArray[np.void]) -> bool:
    """Whether all would pass `BlockEntry.unpack`."""
    sums = b"".join(map(xxhash.xxh3_128_digest, rows.view(_COVERED)["covered"].tolist()))
    ids = np.stack([rows["namespace"], rows["tenant"], rows["writer"]])
    return bool(
        sums == rows["sum"].tobytes()
        and (rows["version"] == ENTRY_VERSION).all()
        and (ids >= 1).all()
        and (ids <= ID_MAX).all()
        and (rows["owner"] <= OWNER_MAX).all()
    )


def _is_good(name: bytes, record: bytes) -> bool:
    try:
        BlockEntry.unpack(name, record)
    except ValueError:
        return False
    return True


def _room_for(count: int) -> FoundBlocks:
    columns = {name: np.empty(count, dtype) for name, dtype in _COLUMNS.items()}
    return FoundBlocks(**{name: _words(column) for name, column in columns.items()})


def _longer(found: FoundBlocks, count: int) -> FoundBlocks:
    """With room for so many more."""
    more = _room_for(count)
    return FoundBlocks(
        **{name: np.concatenate([getattr(each, name) for each in (found, more)]) for name in _COLUMNS}
    )


def _fill(found: FoundBlocks, start: int, rows: NDArray[np.void]) -> None:
    for name in _COLUMNS:
        _digests(getattr(found, name))[start : start + rows.size] = rows[name]


def _words(column: NDArray[Any]) -> NDArray[Any]:
    """A row of words for each key; of numbers themselves."""
    return column if column.dtype.kind == "u" else column.view(np.uint64).reshape(-1, KEY_WORDS)


def _digests(column: NDArray[Any]) -> NDArray[Any]:
    """The opposite."""
    return column if column.ndim == 1 else column.view(f"V{8 * KEY_WORDS}").ravel()
