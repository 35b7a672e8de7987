"""Blocks with random bytes, and their keys."""

import contextlib
import os
import resource
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from kvstore.core.types import BlockKey, NamespaceId, StoredKey, TenantId, WriterId
from kvstore.tiers.disk import DiskTier, ReadOutcome
from kvstore.tiers.disk_format import TABLES, BlockEntry, block_name, segment_name
from kvstore.tiers.disk_tickets import Ticket
from kvstore.tiers.names import Names

CAP = 64 << 20
BLOCK = 10_001  # Odd, and not a multiple of anything that counts.


def key_of(number: int) -> BlockKey:
    return BlockKey(sha256(str(number).encode()).digest())


def stored(number: int, parent: int | None = None, *, namespace: int = 1, tenant: int = 1) -> StoredKey:
    return StoredKey(
        namespace=NamespaceId(namespace),
        tenant=TenantId(tenant),
        key=key_of(number),
        parent=BlockKey(b"" if parent is None else key_of(parent)),
        writer=WriterId(1),
    )


def chain(length: int, first: int = 0) -> list[StoredKey]:
    return [stored(n, n - 1 if n > first else None) for n in range(first, first + length)]


def payload(size: int = BLOCK, ranks: int = 1) -> list[memoryview]:
    return [memoryview(os.urandom(size)) for _ in range(ranks)]


def frames(size: int = BLOCK, ranks: int = 1) -> list[np.ndarray]:
    return [np.zeros(size, np.uint8) for _ in range(ranks)]


def read(disk: DiskTier, key: StoredKey, size: int = BLOCK, ranks: int = 1) -> bytes | None:
    out = frames(size, ranks)
    good = disk.read([key], [out]) == [ReadOutcome.GOOD]
    return b"".join(part.tobytes() for part in out) if good else None


def open_tier(folder: Path, cap: int = CAP, size: int = BLOCK, ranks: int = 1, **options: Any) -> DiskTier:
    """Laid out, with a namespace of that size and a tenant."""
    disk = DiskTier.open(folder, cap, **options)
    add_namespace(disk.names, size, ranks)
    disk.names.tenant_id("default")
    disk.lay_out(size, ranks)
    return disk


def add_namespace(
    names: Names, size: int = BLOCK, ranks: int = 1, fingerprint: bytes = b"f" * 32
) -> NamespaceId:
    return names.namespace_id(fingerprint, size, 16, ranks, {"model": "m"})


def write(
    disk: DiskTier, keys: Sequence[StoredKey], size: int = BLOCK, ticket: Ticket | None = None
) -> list[bytes]:
    """Stores random blocks and returns their bytes."""
    payloads = [payload(size) for _ in keys]
    disk.write(keys, payloads, ticket=ticket)
    return [bytes(parts[0]) for parts in payloads]


def change_raw(folder: Path, table: str, name: bytes, change) -> None:
    """What a flipped bit or another program would do, with the tier closed."""
    with lmdb.open(str(folder), max_dbs=len(TABLES), map_size=CAP) as env:
        db = env.open_db(table.encode())
        with env.begin(write=True) as txn:
            value = change(txn.get(name, db=db))
            if value is None:
                txn.delete(name, db=db)
            else:
                txn.put(name, value, db=db)


@contextlib.contextmanager
def files_at_most(size: int):
    """Writes beyond `size` fail with EFBIG: a full disk that needs no root and no mount."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def place_of(folder: Path, key: StoredKey, slot_bytes: int) -> tuple[Path, int]:
    """The file in which a block's bytes stand, and where in it; with the tier closed."""
    name = block_name(key)
    with lmdb.open(str(folder), max_dbs=len(TABLES), map_size=CAP) as env, env.begin() as txn:
        entry = BlockEntry.unpack(name, txn.get(name, b"", db=env.open_db(b"blocks", txn, create=False)))
    return folder / segment_name(entry.segment), entry.slot * slot_bytes


def change_bytes(folder: Path, key: StoredKey, slot_bytes: int, change) -> None:
    """`change` gets the slot's bytes and returns what stands there from now on."""
    path, offset = place_of(folder, key, slot_bytes)
    with path.open("r+b") as file:
        file.seek(offset)
        value = change(file.read(slot_bytes))
        file.seek(offset)
        file.write(value)


def taken_bytes(folder: Path) -> int:
    """On disk, as the file system counts them."""
    return sum(path.lstat().st_blocks * 512 for path in (folder, *folder.rglob("*")))


def reopen(disk: DiskTier, cap: int = CAP) -> DiskTier:
    disk.close()
    return open_tier(disk.folder, cap)
