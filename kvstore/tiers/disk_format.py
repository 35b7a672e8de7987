"""The disk tier's layout, format 1. What stands here can't be changed without a new format number.

One LMDB environment with these tables, all numbers big-endian:

    meta         magic -> MAGIC; format -> u32; turned -> u64, ns (see BlockTable)
    namespaces   fingerprint -> u32 id, JSON of sizes and description
    tenants      name -> u32 id
    writers      engine, NUL, build -> u32 id
    blocks       block name -> BlockEntry
    bytes        block name -> the block's bytes, rank after rank

A block's name is namespace u32, tenant u32, block key (32 bytes): nothing is found across tenants
or namespaces, and one namespace's blocks stand together. The checksum covers the name, so that
bytes that have come under a wrong name are found out too.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import xxhash

from kvstore.core.errors import check
from kvstore.core.types import BlockKey, NamespaceId, StoredKey, TenantId, WriterId
from kvstore.tiers.names import NameKind, NameRow

__all__ = [
    "FORMAT",
    "MAGIC",
    "TABLES",
    "BlockEntry",
    "block_name",
    "checksum_of",
    "namespace_of",
    "pack_name_row",
    "stored_bytes",
    "stored_key",
    "unpack_name_row",
]

MAGIC = b"kvstore disk tier"
FORMAT = 1
TABLES = ("meta", *NameKind, "blocks", "bytes")

# LMDB's header on the first page of a value that has pages of its own.
PAGE_HEADER_BYTES = 16
# A block's share of the trees' own pages, half-filled ones: about 400 bytes, rounded up.
INDEX_BYTES = 512

NO_PARENT = bytes(32)
_BLOCK_NAME = struct.Struct(">II32s")
_ENTRY = struct.Struct(">BQ32s16sIQ")
_ENTRY_VERSION = 1
_ID = struct.Struct(">I")


def block_name(key: StoredKey) -> bytes:
    check(len(key.key) == 32, f"a block key of {len(key.key)} bytes")
    return _BLOCK_NAME.pack(key.namespace, key.tenant, key.key)


def stored_key(name: bytes, entry: "BlockEntry") -> StoredKey:
    namespace, tenant, key = _BLOCK_NAME.unpack(name)
    return StoredKey(
        namespace=NamespaceId(namespace),
        tenant=TenantId(tenant),
        key=BlockKey(key),
        parent=entry.parent,
        writer=entry.writer,
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEntry:
    """`parent` is empty for the first block of a chain; 32 zero bytes in the file."""

    size: int
    parent: BlockKey
    checksum: bytes
    writer: WriterId
    created_ns: int

    def pack(self) -> bytes:
        check(len(self.parent) in (0, 32), f"a parent key of {len(self.parent)} bytes")
        parent = self.parent or NO_PARENT
        return _ENTRY.pack(_ENTRY_VERSION, self.size, parent, self.checksum, self.writer, self.created_ns)

    @classmethod
    def unpack(cls, record: bytes) -> Self:
        """ValueError where this isn't a record that this build reads."""
        if len(record) != _ENTRY.size or record[0] != _ENTRY_VERSION:
            raise ValueError(f"not a block entry of version {_ENTRY_VERSION}: {record[:8].hex()}…")
        _, size, parent, checksum, writer, created_ns = _ENTRY.unpack(record)
        return cls(
            size=size,
            parent=BlockKey(b"" if parent == NO_PARENT else parent),
            checksum=checksum,
            writer=WriterId(writer),
            created_ns=created_ns,
        )


def pack_name_row(row: NameRow) -> bytes:
    return _ID.pack(row.id) + row.value


def unpack_name_row(kind: NameKind, name: bytes, record: bytes) -> NameRow:
    """ValueError where the record is too short to be one."""
    if len(record) < _ID.size:
        raise ValueError(f"not an entry of {kind}: {record.hex()}")
    return NameRow(kind=kind, id=_ID.unpack_from(record)[0], name=name, value=record[_ID.size :])
