"""What may be found of each block after a crash: what was told to the tier, what it had answered by then.

A deed is one call: a batch written or deleted. Blocks go by numbers here, and each writing of a block is a
version of its own with bytes of its own, so that old bytes under a right name are found out too. ABSENT is
the version of a block that isn't there.

Of writes that are under way at once, each is there only where those are that were begun before it (`after`).

A write that was answered is a promise: its versions are there, and nothing else, until the next deed with
the same block begins. One that had begun and was not answered may have happened or not; all of its
blocks or none. A deleted block may come back with its last bytes, for a delete is only a permission. The
sessions of chains are kept and forgotten by deeds of the same kind.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvstore.core.types import (
    BlockKey,
    NamespaceId,
    SessionName,
    StoredKey,
    StoredSession,
    TenantId,
    WriterId,
)
from tests.tiers.helpers import key_of

__all__ = [
    "ABSENT",
    "CHAIN",
    "NEVER",
    "Broken",
    "Deed",
    "allowed_at",
    "allowed_sessions",
    "bytes_of",
    "overtaken",
    "read_deeds",
    "session_name",
    "stored_key",
    "stored_session",
    "torn_batches",
]

ABSENT = 0
# Blocks of a chain have numbers from a multiple of it on.
CHAIN = 100
NEVER = 1 << 60
TENANTS = 2
SESSIONS_SURE = 2


class Broken(Exception):
    """A promise of the tier's."""


@dataclass(slots=True)
class Deed:
    """`begin` and `end` are places in a log, or lines of a file. A write that failed promises nothing."""

    kind: str
    blocks: dict[int, int]
    begin: int = NEVER
    end: int = NEVER
    good: bool = True
    parents: dict[int, int] = field(default_factory=dict)
    # The write that was begun before it, and under way then.
    after: "Deed | None" = None


def stored_key(number: int, parent: int = -1) -> StoredKey:
    """Tenants take turns by hundreds, so that chains stay with one."""
    return StoredKey(
        namespace=NamespaceId(1),
        tenant=TenantId(1 + number // CHAIN % TENANTS),
        key=key_of(number),
        parent=BlockKey(b"" if parent < 0 else key_of(parent)),
        writer=WriterId(1),
    )


def session_name(chain: int) -> SessionName:
    key = stored_key(CHAIN * chain)
    return SessionName(namespace=key.namespace, tenant=key.tenant, name=f"chat {chain}")


def stored_session(chain: int, version: int, length: int) -> StoredSession:
    """Its version is the number of its turn."""
    name = session_name(chain)
    keys = tuple(stored_key(CHAIN * chain + place).key for place in range(length))
    return StoredSession(
        namespace=name.namespace, tenant=name.tenant, name=name.name, turn=version, keys=keys
    )


def bytes_of(number: int, version: int, size: int) -> bytes:
    return np.random.default_rng((number, version)).bytes(size)


def allowed_at(deeds: Iterable[Deed], point: int) -> dict[int, set[int]]:
    """By block, the versions that may be found if all ends at `point`; ABSENT where it may be gone."""
    allowed: dict[int, set[int]] = {}
    for deed in deeds:
        if deed.begin >= point or deed.kind not in ("write", "delete"):
            continue
        answered = deed.end < point
        for number, version in deed.blocks.items():
            before = allowed.setdefault(number, {ABSENT})
            if deed.kind == "delete":
                before.add(ABSENT)
            elif answered and deed.good:
                allowed[number] = {version}
            elif not answered:
                before.add(version)
    return allowed


def allowed_sessions(deeds: Iterable[Deed], point: int) -> dict[int, set[int]]:
    """What was forgotten does not come back. The last ones kept are sure
    to be there; as how many there are is bounded, others may be gone."""
    allowed: dict[int, set[int]] = {}
    kept: list[int] = []
    for deed in deeds:
        if deed.begin >= point or deed.kind not in ("keep", "forget"):
            continue
        for chain, version in deed.blocks.items():
            if deed.end < point and deed.good:
                allowed[chain] = {version}
                kept = [each for each in kept if each != chain] + [chain] * (deed.kind == "keep")
            else:
                allowed.setdefault(chain, {ABSENT}).add(version)
    for chain in set(allowed).difference(kept[-SESSIONS_SURE:]):
        allowed[chain].add(ABSENT)
    return allowed


def torn_batches(deeds: Iterable[Deed], point: int, found: Mapping[int, int]) -> list[Deed]:
    """Writes under way at `point` of which some blocks were found and some not: none may be so.

    Blocks that a later deed has to do with say nothing of it any more.
    """
    torn = []
    later: set[int] = set()
    for deed in sorted(deeds, key=lambda deed: deed.begin, reverse=True):
        if deed.begin >= point or deed.kind not in ("write", "delete"):
            continue
        if deed.kind == "write" and point <= deed.end:
            own = {number: version for number, version in deed.blocks.items() if number not in later}
            if len({found.get(number, ABSENT) == version for number, version in own.items()}) > 1:
                torn.append(deed)
        later |= set(deed.blocks)
    return torn


def overtaken(deeds: Iterable[Deed], point: int, found: Mapping[int, int]) -> list[Deed]:
    """Writes of which something was found, and that were begun while another was under way of which nothing
    is there. Blocks that a later deed has to do with say nothing, as above."""
    wrong = []
    later: set[int] = set()
    seen: dict[int, set[bool]] = {}
    for deed in sorted(deeds, key=lambda deed: deed.begin, reverse=True):
        if deed.begin >= point or deed.kind not in ("write", "delete"):
            continue
        if deed.kind == "write":
            own = {number: version for number, version in deed.blocks.items() if number not in later}
            seen[id(deed)] = {found.get(number, ABSENT) == version for number, version in own.items()}
        later |= set(deed.blocks)
    for deed in deeds:
        if deed.after is not None and True in seen.get(id(deed), ()) and seen.get(id(deed.after)) == {False}:
            wrong.append(deed)
    return wrong


def read_deeds(path: Path) -> list[Deed]:
    """What a process has noted: a line for the begin and one for the end of each. The last may be torn."""
    deeds: list[Deed] = []
    if not path.exists():
        return deeds
    for place, line in enumerate(path.read_bytes().split(b"\n")[:-1]):
        note = json.loads(line)
        if "end" in note:
            # Several may be under way; by their numbers in this file.
            deed = deeds[note["deed"]]
            deed.end, deed.good = place, note["end"]
        else:
            blocks = {int(number): version for number, version in note["blocks"].items()}
            after = deeds[note["after"]] if note["after"] >= 0 else None
            deeds.append(Deed(note["kind"], blocks, place, after=after))
    return deeds
