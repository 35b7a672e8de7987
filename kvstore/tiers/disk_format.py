"""The disk tier's layout, format 2. What stands here can't be changed without a new format number.

One LMDB environment with these tables, all numbers big-endian:

    meta         magic -> MAGIC; format -> u32; turned -> u64, ns (see BlockTable)
    namespaces   fingerprint -> u32 id, checksum, JSON of sizes and description
    tenants      name -> u32 id, checksum
    writers      engine, NUL, build -> u32 id, checksum
    blocks       block name -> BlockEntry
    bytes        block name -> the block's bytes, rank after rank

A block's name is namespace u32, tenant u32, block key (32 bytes): nothing is found across tenants
or namespaces, and one namespace's blocks stand together. The checksum covers the name, so that
bytes that have come under a wrong name are found out too. So do those of an entry and of a row of the
name tables, which cover the record's other fields as well: one flipped bit in an id would serve one
model's KV to another. Format 1 had neither.
"""

import struct
import time
from collections.abc import Iterable, Sequence
from typing import Final, Self

import xxhash
from msgspec import Struct

from kvstore.core.errors import check
from kvstore.core.types import BlockKey, NamespaceId, StoredKey, WriterId
from kvstore.tiers.names import ID_MAX, NameKind, NameRow

__all__ = [
    "ENTRY_VERSION",
    "FORMAT",
    "MAGIC",
    "SUM_BYTES",
    "TABLES",
    "BlockEntry",
    "block_name",
    "checksum_of",
    "namespace_of",
    "new_entry",
    "pack_name_row",
    "stored_bytes",
    "unpack_name_row",
]

MAGIC = b"kvstore disk tier"
FORMAT = 2
TABLES = ("meta", *NameKind, "blocks", "bytes")

# LMDB's header on the first page of a value that has pages of its own.
PAGE_HEADER_BYTES = 16
# A block's share of the trees' own pages, half-filled ones: about 400 bytes, rounded up.
INDEX_BYTES = 512

NO_PARENT = bytes(32)
_BLOCK_NAME = struct.Struct(">II32s")
_ENTRY = struct.Struct(">BQ32s16sIQ")
ENTRY_VERSION: Final = 2
_ID = struct.Struct(">I")
SUM_BYTES: Final = 16


def block_name(key: StoredKey) -> bytes:
    check(len(key.key) == 32, f"a block key of {len(key.key)} bytes")
    return _BLOCK_NAME.pack(key.namespace, key.tenant, key.key)


def namespace_of(name: bytes) -> NamespaceId:
    return NamespaceId(int.from_bytes(name[:4]))


def checksum_of(name: bytes, parts: Iterable[memoryview]) -> bytes:
    """xxh3-128 of the block's name and its bytes."""
    digest = xxhash.xxh3_128(name)
    for part in parts:
        digest.update(part)
    return digest.digest()


def stored_bytes(size: int, page_bytes: int) -> int:
    """What a block of `size` bytes takes of the cap: its pages and its share of the trees."""
    return -(-(size + PAGE_HEADER_BYTES) // page_bytes) * page_bytes + INDEX_BYTES


class BlockEntry(Struct, frozen=True, kw_only=True, gc=False):
    """`parent` is empty for the first block of a chain; 32 zero bytes in the file."""

    size: int
    parent: BlockKey
    checksum: bytes
    writer: WriterId
    created_ns: int

    def pack(self, name: bytes) -> bytes:
        """For the block of this name, with a checksum over both."""
        check(len(self.parent) in (0, 32), f"a parent key of {len(self.parent)} bytes")
        parent = self.parent or NO_PARENT
        fields = _ENTRY.pack(ENTRY_VERSION, self.size, parent, self.checksum, self.writer, self.created_ns)
        return fields + _sum("blocks", name, fields)

    @classmethod
    def unpack(cls, name: bytes, record: bytes) -> Self:
        """ValueError where this isn't what `pack` made for this name."""
        if len(record) != _ENTRY.size + SUM_BYTES or record[0] != ENTRY_VERSION:
            raise ValueError(f"not a block entry of version {ENTRY_VERSION}: {record[:8].hex()}…")
        fields = record[: _ENTRY.size]
        if len(name) != _BLOCK_NAME.size or not record.endswith(_sum("blocks", name, fields)):
            raise ValueError("wrong checksum of the block's entry")
        _, size, parent, checksum, writer, created_ns = _ENTRY.unpack(fields)
        namespace, tenant, _ = _BLOCK_NAME.unpack(name)
        if not (1 <= namespace <= ID_MAX and 1 <= tenant <= ID_MAX and 1 <= writer <= ID_MAX):
            raise ValueError(f"an id of {namespace}, {tenant} or {writer}, where 1 to {ID_MAX} are possible")
        return cls(
            size=size,
            parent=BlockKey(b"" if parent == NO_PARENT else parent),
            checksum=checksum,
            writer=WriterId(writer),
            created_ns=created_ns,
        )


def new_entry(name: bytes, key: StoredKey, parts: Sequence[memoryview]) -> BlockEntry:
    return BlockEntry(
        size=sum(part.nbytes for part in parts),
        parent=key.parent,
        checksum=checksum_of(name, parts),
        writer=key.writer,
        created_ns=time.time_ns(),
    )


def pack_name_row(row: NameRow) -> bytes:
    id_ = _ID.pack(row.id)
    return id_ + _sum(row.kind, row.name, id_, row.value) + row.value


def unpack_name_row(kind: NameKind, name: bytes, record: bytes) -> NameRow:
    """ValueError where this isn't what `pack_name_row` made for this kind and name."""
    id_, total, value = record[: _ID.size], record[_ID.size :][:SUM_BYTES], record[_ID.size + SUM_BYTES :]
    if total != _sum(kind, name, id_, value):
        raise ValueError(f"wrong checksum of entry {name[:32].hex()} of {kind}")
    row = NameRow(kind=kind, id=_ID.unpack(id_)[0], name=name, value=value)
    _check_id(row.id)
    return row


def _sum(table: str, name: bytes, *fields: bytes) -> bytes:
    """xxh3-128. The lengths keep a byte that has moved from one part to the next from going unseen."""
    parts = [table.encode()]
    for part in (name, *fields):
        parts += len(part).to_bytes(4), part
    return xxhash.xxh3_128_digest(b"".join(parts))


def _check_id(id_: int) -> None:
    if not 1 <= id_ <= ID_MAX:
        raise ValueError(f"an id of {id_}, where 1 to {ID_MAX} are possible")
