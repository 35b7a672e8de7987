"""Small ids for long names: namespaces, tenants and writers, as the disk tier's keys and entries hold them.

Ids are handed out in memory, at once and without fail. A disk tier loads its own at the start and
writes new ones in the transaction of the first blocks that come after them: an id that no block on
disk refers to need not outlive the service.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvstore.core.errors import FieldInvalid, LayoutMismatch
from kvstore.core.types import NamespaceId, TenantId, WriterId

__all__ = ["ID_MAX", "NameKind", "NameRow", "Names"]

# LMDB's keys are at most 511 bytes; nobody needs as many.
NAME_BYTES_MAX = 256
# Whoever keeps ids in arrays may take 32 bits with a sign for them.
ID_MAX = 2**31 - 1
SIZES = ("block_bytes", "block_tokens", "ranks")


class NameKind(StrEnum):
    """The values name the disk's tables."""

    NAMESPACE = "namespaces"
    TENANT = "tenants"
    WRITER = "writers"


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRow:
    """`value` is a namespace's sizes and description as JSON; empty for the others."""

    kind: NameKind
    id: int
    name: bytes
    value: bytes = b""


class Names:
    """For any thread. Rows are only ever added, so that a count says which of them are saved."""

    def __init__(self, rows: Iterable[NameRow] = ()) -> None:
        """ValueError where a namespace's row isn't one, or two rows have one id."""
        self._lock = threading.Lock()
        self._rows: list[NameRow] = []
        self._by_name: dict[tuple[NameKind, bytes], NameRow] = {}
        self._names: dict[tuple[NameKind, int], bytes] = {}
        self._sizes: dict[NamespaceId, dict[str, int]] = {}
        self._ids: dict[NameKind, set[int]] = {kind: set() for kind in NameKind}
        self._id_last = dict.fromkeys(NameKind, 0)
        for row in rows:
            self._add(row)

    def namespace_id(
        self,
        fingerprint: bytes,
        block_bytes: int,
        block_tokens: int,
        ranks: int,
        description: Mapping[str, str],
    ) -> NamespaceId:
        """`block_bytes` is one rank's share. A fingerprint belongs to one set of sizes for ever."""
        sizes = {"block_bytes": block_bytes, "block_tokens": block_tokens, "ranks": ranks}
        value = json.dumps({**sizes, "description": dict(description)}, sort_keys=True).encode()
        namespace = NamespaceId(self._find_or_add(NameKind.NAMESPACE, fingerprint, value))
        self._check_sizes(namespace, sizes)
        return namespace

    def check_namespace(self, fingerprint: bytes, block_bytes: int, block_tokens: int, ranks: int) -> None:
        """Refuses what `namespace_id` would, and gives no id to one that is new."""
        namespace = self.find_namespace(fingerprint)
        if namespace is not None:
            sizes = {"block_bytes": block_bytes, "block_tokens": block_tokens, "ranks": ranks}
            self._check_sizes(namespace, sizes)

    def _check_sizes(self, namespace: NamespaceId, sizes: Mapping[str, int]) -> None:
        for name, known in self._sizes[namespace].items():
            if known != sizes[name]:
                raise LayoutMismatch(
                    f"this namespace is known with {name} = {known}",
                    field=name,
                    value=sizes[name],
                    remedy="let everything that changes a block's bytes enter the namespace's fingerprint",
                )

    def tenant_id(self, name: str) -> TenantId:
        return TenantId(self._find_or_add(NameKind.TENANT, name.encode()))

    def writer_id(self, engine: str, build: str) -> WriterId:
        return WriterId(self._find_or_add(NameKind.WRITER, f"{engine}\0{build}".encode()))

    def name_of(self, kind: NameKind, id_: int) -> bytes:
        """Empty where none is known: a row on disk may be lost, and what bears its id be there still."""
        with self._lock:
            return self._names.get((kind, id_), b"")

    def find_namespace(self, fingerprint: bytes) -> NamespaceId | None:
        with self._lock:
            row = self._by_name.get((NameKind.NAMESPACE, fingerprint))
        return NamespaceId(row.id) if row is not None else None

    def writers_of(self, engine: str) -> tuple[WriterId, ...]:
        """All builds of an engine."""
        prefix = f"{engine}\0".encode()
        with self._lock:
            return tuple(
                WriterId(row.id)
                for row in self._rows
                if row.kind is NameKind.WRITER and row.name.startswith(prefix)
            )

    def namespaces_of_size(self, block_bytes_all_ranks: int) -> frozenset[NamespaceId]:
        """Those whose blocks have so many bytes, all ranks together."""
        with self._lock:
            return frozenset(
                namespace
                for namespace, sizes in self._sizes.items()
                if sizes["block_bytes"] * sizes["ranks"] == block_bytes_all_ranks
            )

    def reserve(self, kind: NameKind, id_: int) -> None:
        """Keeps ids up to this one from being given out: something on disk may still bear them.

        The row that gave it may be lost; under a new name the id would serve what is another's.
        """
        with self._lock:
            self._id_last[kind] = max(self._id_last[kind], id_)

    def rows_after(self, count: int) -> list[NameRow]:
        """All but the `count` oldest rows."""
        with self._lock:
            return self._rows[count:]

    def _find_or_add(self, kind: NameKind, name: bytes, value: bytes = b"") -> int:
        if not 0 < len(name) <= NAME_BYTES_MAX:
            remedy = f"1 to {NAME_BYTES_MAX} bytes"
            raise FieldInvalid(f"{len(name)} bytes long", field=kind, value=name, remedy=remedy)
        with self._lock:
            row = self._by_name.get((kind, name))
            if row is None:
                row = NameRow(kind=kind, id=self._id_last[kind] + 1, name=name, value=value)
                self._add(row)
            return row.id

    def _add(self, row: NameRow) -> None:
        if row.id in self._ids[row.kind]:
            raise ValueError(f"two entries of {row.kind} with id {row.id}")
        if row.kind is NameKind.NAMESPACE:
            self._sizes[NamespaceId(row.id)] = _read_sizes(row.value)
        self._ids[row.kind].add(row.id)
        self._rows.append(row)
        self._by_name[row.kind, row.name] = row
        self._names[row.kind, row.id] = row.name
        self._id_last[row.kind] = max(self._id_last[row.kind], row.id)


def _read_sizes(value: bytes) -> dict[str, int]:
    try:
        known = json.loads(value)
        sizes = {name: known[name] for name in SIZES}
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a namespace's sizes: {value[:100]!r}") from error
    # `bool` is an int too, and a size of 1.0 is none.
    if not all(type(size) is int and size > 0 for size in sizes.values()):
        raise ValueError(f"not a namespace's sizes: {value[:100]!r}")
    return sizes
