"""The disk tier's layout, format 3. What stands here can't be changed without a new format number.

A block's bytes stand in a *slot* of a segment file, rank after rank, each rank's share at a multiple of 4096
bytes. Slots are numbered through all segments; segment n is the file that `segment_name` says. One LMDB
environment beside them, all numbers big-endian, with these tables:

    meta         magic -> MAGIC; format -> u32; geometry -> Geometry; turned -> u64, ns (see BlockTable)
    namespaces   fingerprint -> u32 id, checksum, JSON of sizes and description
    tenants      name -> u32 id, checksum
    writers      engine, NUL, build -> u32 id, checksum
    blocks       block name -> BlockEntry
    uses         block name -> when it was last used, and how often (disk_records.py)
    sessions     namespace u32, tenant u32, name -> turn and keys (disk_records.py)

A block's name is namespace u32, tenant u32, block key (32 bytes): nothing is found across tenants
or namespaces, and one namespace's blocks stand together. The checksum covers the name, so that
bytes that have come under a wrong name are found out too, and so are those of a slot that another block has
taken. So do those of an entry and of a row of the name tables, which cover the record's other fields as
well: one flipped bit in an id would serve one model's KV to another. Format 1 had neither; format 2 had the
bytes in LMDB.
"""

import struct
from collections.abc import Iterable
from typing import Final, Self

import xxhash
from msgspec import Struct

from kvstore.core.errors import check
from kvstore.core.types import BlockKey, NamespaceId, StoredKey, WriterId
from kvstore.tiers.files import ALIGNMENT
from kvstore.tiers.names import ID_MAX, NameKind, NameRow

__all__ = [
    "ENTRY_VERSION",
    "FORMAT",
    "MAGIC",
    "OWNER_MAX",
    "SUM_BYTES",
    "TABLES",
    "BlockEntry",
    "Geometry",
    "block_name",
    "checksum_of",
    "key_of_name",
    "namespace_of",
    "pack_name_row",
    "record_sum",
    "segment_name",
    "unpack_name_row",
]

MAGIC = b"kvstore disk tier"
FORMAT = 3
TABLES = ("meta", *NameKind, "blocks", "uses", "sessions")

NO_PARENT = bytes(32)
_BLOCK_NAME = struct.Struct(">II32s")
_ENTRY = struct.Struct(">BIIQ32s16sIQQ")
ENTRY_VERSION: Final = 3
# Whoever keeps owners in arrays has a sign for them.
OWNER_MAX = 2**63 - 1
_GEOMETRY = struct.Struct(">QII")
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


class Geometry(Struct, frozen=True, kw_only=True):
    """Of a folder, for ever: a rank's share of a slot in bytes, ranks, and slots in a whole segment."""

    stride_bytes: int
    ranks: int
    segment_slots: int

    @property
    def slot_bytes(self) -> int:
        return self.stride_bytes * self.ranks

    def fits(self, other: Self) -> bool:
        """Whether blocks of the one may stand in slots of the other."""
        return (self.stride_bytes, self.ranks) == (other.stride_bytes, other.ranks)

    def pack(self) -> bytes:
        fields = _GEOMETRY.pack(self.stride_bytes, self.ranks, self.segment_slots)
        return fields + record_sum("meta", b"geometry", fields)

    @classmethod
    def unpack(cls, record: bytes) -> Self:
        """ValueError where this isn't what `pack` made."""
        fields = record[: _GEOMETRY.size]
        if len(fields) < _GEOMETRY.size or record[_GEOMETRY.size :] != record_sum(
            "meta", b"geometry", fields
        ):
            raise ValueError("wrong checksum of the folder's geometry")
        stride, ranks, segment_slots = _GEOMETRY.unpack(fields)
        if stride % ALIGNMENT or not (stride and ranks and segment_slots):
            raise ValueError(f"not a geometry: {stride} bytes, {ranks} ranks, {segment_slots} slots")
        return cls(stride_bytes=stride, ranks=ranks, segment_slots=segment_slots)


def segment_name(segment: int) -> str:
    return f"segment-{segment:06}"


class BlockEntry(Struct, frozen=True, kw_only=True, gc=False):
    """`segment` and `slot` in it are the block's place. `size` is its bytes, all ranks together, without what
    pads them. `parent` is empty for the first block of a chain; 32 zero bytes in the file."""

    segment: int
    slot: int
    size: int
    parent: BlockKey
    checksum: bytes
    writer: WriterId
    created_ns: int
    # The session that has committed the block, or 0.
    owner: int = 0

    def pack(self, name: bytes) -> bytes:
        """For the block of this name, with a checksum over both."""
        check(len(self.parent) in (0, 32), f"a parent key of {len(self.parent)} bytes")
        parent = self.parent or NO_PARENT
        fields = _ENTRY.pack(
            ENTRY_VERSION,
            self.segment,
            self.slot,
            self.size,
            parent,
            self.checksum,
            self.writer,
            self.created_ns,
            self.owner,
        )
        return fields + record_sum("blocks", name, fields)

    @classmethod
    def unpack(cls, name: bytes, record: bytes) -> Self:
        """ValueError where this isn't what `pack` made for this name."""
        if len(record) != _ENTRY.size + SUM_BYTES or record[0] != ENTRY_VERSION:
            raise ValueError(f"not a block entry of version {ENTRY_VERSION}: {record[:8].hex()}…")
        fields = record[: _ENTRY.size]
        if len(name) != _BLOCK_NAME.size or not record.endswith(record_sum("blocks", name, fields)):
            raise ValueError("wrong checksum of the block's entry")
        _, segment, slot, size, parent, checksum, writer, created_ns, owner = _ENTRY.unpack(fields)
        namespace, tenant, _ = _BLOCK_NAME.unpack(name)
        if not (1 <= namespace <= ID_MAX and 1 <= tenant <= ID_MAX and 1 <= writer <= ID_MAX):
            raise ValueError(f"an id of {namespace}, {tenant} or {writer}, where 1 to {ID_MAX} are possible")
        if owner > OWNER_MAX:
            raise ValueError(f"an owner of {owner}, where 0 to {OWNER_MAX} are possible")
        return cls(
            segment=segment,
            slot=slot,
            size=size,
            parent=BlockKey(b"" if parent == NO_PARENT else parent),
            checksum=checksum,
            writer=WriterId(writer),
            created_ns=created_ns,
            owner=owner,
        )


def key_of_name(name: bytes) -> StoredKey:
    """What a name says alone: its block's parent and writer are in the entry, which may be unreadable."""
    namespace, tenant, key = _BLOCK_NAME.unpack(name)
    return StoredKey(
        namespace=namespace, tenant=tenant, key=BlockKey(key), parent=BlockKey(b""), writer=WriterId(0)
    )


def pack_name_row(row: NameRow) -> bytes:
    id_ = _ID.pack(row.id)
    return id_ + record_sum(row.kind, row.name, id_, row.value) + row.value


def unpack_name_row(kind: NameKind, name: bytes, record: bytes) -> NameRow:
    """ValueError where this isn't what `pack_name_row` made for this kind and name."""
    id_, total, value = record[: _ID.size], record[_ID.size :][:SUM_BYTES], record[_ID.size + SUM_BYTES :]
    if total != record_sum(kind, name, id_, value):
        raise ValueError(f"wrong checksum of entry {name[:32].hex()} of {kind}")
    row = NameRow(kind=kind, id=_ID.unpack(id_)[0], name=name, value=value)
    _check_id(row.id)
    return row


def record_sum(table: str, name: bytes, *fields: bytes) -> bytes:
    """xxh3-128. The lengths keep a byte that has moved from one part to the next from going unseen."""
    parts = [table.encode()]
    for part in (name, *fields):
        parts += len(part).to_bytes(4), part
    return xxhash.xxh3_128_digest(b"".join(parts))


def _check_id(id_: int) -> None:
    if not 1 <= id_ <= ID_MAX:
        raise ValueError(f"an id of {id_}, where 1 to {ID_MAX} are possible")
