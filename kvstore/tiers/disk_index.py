"""The index as it is found at the start, in columns: a million entries in less than a second.

What makes an entry a good one is said in disk_format.py. Here that is asked of thousands together, in
a few calls of numpy and a checksum each. Where not all of them pass, each is looked at by itself.
How blocks hang together is not covered here, but in disk_order.py.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, compress, islice, repeat
from operator import lt

import numpy as np
import xxhash
from msgspec import Struct
from numpy.typing import NDArray

from kvstore.core.types import BlockKey, StoredKey
from kvstore.tiers.disk_format import ENTRY_VERSION, OWNER_MAX, SUM_BYTES, BlockEntry
from kvstore.tiers.names import ID_MAX

__all__ = ["NO_PARENT", "FoundBlocks", "Places", "read_index"]

# Where blocks stand among those that were found.
Places = NDArray[np.intp]
# The last place, where lists have what stands for no parent.
NO_PARENT = -1

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
_BEFORE_NAME = b"blocks" + NAME_BYTES.to_bytes(4)
_BEFORE_FIELDS = FIELDS_BYTES.to_bytes(4)
# A row is what the checksum of an entry covers, in this order, and the checksum.
_ROW = np.dtype([("before_name", "V10"), *_NAME, ("before_fields", "V4"), *_FIELDS, ("sum", "V16")])
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

    def take(self, places: Places | NDArray[np.bool_]) -> "FoundBlocks":
        return FoundBlocks(**{name: getattr(self, name)[places] for name in self.__struct_fields__})

    def names(self) -> list[bytes]:
        rows = np.empty(len(self), _NAME)
        rows["namespace"], rows["tenant"], rows["key"] = self.namespace, self.tenant, _digests(self.key)
        names: list[bytes] = rows.view(f"V{NAME_BYTES}").tolist()
        return names

    def stored_keys(self, parents: Places) -> list[StoredKey]:
        """`parents` tells where each block's parent stands, or NO_PARENT."""
        keys: list[BlockKey] = _digests(self.key).tolist()
        # One object for a key and for all that hang on it.
        above = [*keys, BlockKey(b"")]
        columns = (
            column.tolist() for column in (parents, self.namespace, self.tenant, self.writer, self.owner)
        )
        return [
            StoredKey(
                namespace=namespace, tenant=tenant, key=key, parent=above[parent], writer=writer, owner=owner
            )
            for key, parent, namespace, tenant, writer, owner in zip(keys, *columns, strict=True)
        ]


def read_index(names: Iterator[bytes], records: Iterator[bytes]) -> tuple[FoundBlocks, list[bytes]]:
    """The good entries, and the names of those that can't be read."""
    pieces, bad = [_columns(np.empty(0, _ROW))], list[bytes]()
    last, ascending = b"", True
    while piece := list(islice(names, PIECE)):
        ascending &= last < piece[0] and all(map(lt, piece, islice(piece, 1, None)))
        last = piece[-1]
        pieces.append(_columns(_read_piece(piece, list(islice(records, PIECE)), bad)))
    fields = FoundBlocks.__struct_fields__
    found = FoundBlocks(**{name: np.concatenate([getattr(each, name) for each in pieces]) for name in fields})
    if not ascending:
        # A damaged tree can lead to one page twice.
        places = {name: place for place, name in enumerate(found.names())}
        found = found.take(np.array(list(places.values()), np.intp))
    return found, bad


def _read_piece(names: list[bytes], records: list[bytes], bad: list[bytes]) -> NDArray[np.void]:
    """Rows of the good ones."""
    if set(map(len, names)) == {NAME_BYTES} and set(map(len, records)) == {FIELDS_BYTES + SUM_BYTES}:
        rows = _join(names, records)
        if _all_good(rows):
            return rows
    good = [_is_good(name, record) for name, record in zip(names, records, strict=True)]
    bad += [name for name, is_good in zip(names, good, strict=True) if not is_good]
    return _join(compress(names, good), compress(records, good))


def _join(names: Iterable[bytes], records: Iterable[bytes]) -> NDArray[np.void]:
    parts = zip(repeat(_BEFORE_NAME), names, repeat(_BEFORE_FIELDS), records, strict=False)
    return np.frombuffer(b"".join(chain.from_iterable(parts)), _ROW)


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


def _columns(rows: NDArray[np.void]) -> FoundBlocks:
    return FoundBlocks(
        namespace=rows["namespace"].astype(np.uint32),
        tenant=rows["tenant"].astype(np.uint32),
        key=_words(rows["key"]),
        parent=_words(rows["parent"]),
        writer=rows["writer"].astype(np.uint32),
        segment=rows["segment"].astype(np.uint32),
        slot=rows["slot"].astype(np.uint32),
        size=rows["size"].astype(np.uint64),
        created_ns=rows["created_ns"].astype(np.uint64),
        owner=rows["owner"].astype(np.uint64),
    )


def _words(digests: NDArray[np.void]) -> NDArray[np.uint64]:
    words: NDArray[np.uint64] = np.ascontiguousarray(digests).view(np.uint64).reshape(-1, KEY_WORDS)
    return words


def _digests(words: NDArray[np.uint64]) -> NDArray[np.void]:
    digests: NDArray[np.void] = words.view(f"V{8 * KEY_WORDS}").ravel()
    return digests
