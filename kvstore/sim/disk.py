"""What lies on the shadow's disk, by key: it outlives the store, and can be damaged."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvstore.core.effects import BlocksUsed, DiskDelete, DiskNote, SessionsForgotten, SessionsKept
from kvstore.core.types import SessionName, StoredKey, StoredSession
from kvstore.sim.wrong import Wrong

__all__ = ["ShadowDisk", "Stored"]

P = TypeVar("P")
Name = tuple[int, int, bytes]


@dataclass(slots=True)
class Stored(Generic[P]):
    """One entry: the parts of all ranks, written and lost together."""

    key: StoredKey
    parts: tuple[P, ...]
    # A bit has changed: the next read finds that out by the checksum.
    flipped: bool = False


class ShadowDisk(Generic[P]):
    """Entries in the order in which they were last written or used, and what is known of sessions."""

    def __init__(self) -> None:
        self._entries: dict[Name, Stored[P]] = {}
        # Dropped since they could not be read, and not deleted since: a claim may have them read again.
        self._lost: set[Name] = set()
        # The least recent first.
        self._sessions: dict[tuple[int, int, str], StoredSession] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Name]:
        return iter(self._entries)

    def put(self, key: StoredKey, parts: tuple[P, ...]) -> None:
        self._entries.pop(_name(key), None)
        self._entries[_name(key)] = Stored(key, parts)
        self._lost.discard(_name(key))

    def part(self, key: StoredKey, rank: int) -> P:
        entry = self._entries.get(_name(key))
        if entry is None:
            raise Wrong(f"block {key.key.hex()[:8]} is read from disk, where it is not")
        return entry.parts[rank]

    def take(self, told: DiskDelete | DiskNote) -> None:
        if isinstance(told, DiskDelete):
            self.delete(told)
        else:
            self.note(told)

    def delete(self, delete: DiskDelete) -> None:
        for key in delete.keys:
            self._entries.pop(_name(key), None)
            self._lost.discard(_name(key))

    def note(self, note: DiskNote) -> None:
        match note:
            case SessionsKept():
                for session in note.sessions:
                    self._sessions.pop(_session_name(session), None)
                    self._sessions[_session_name(session)] = session
            case SessionsForgotten():
                for name in note.sessions:
                    self._sessions.pop(_session_name(name), None)
            case BlocksUsed():
                for key in note.keys:
                    if (entry := self._entries.pop(_name(key), None)) is not None:
                        self._entries[_name(key)] = entry

    def sessions(self) -> tuple[StoredSession, ...]:
        return tuple(self._sessions.values())

    def drop(self, key: StoredKey) -> None:
        """A block that can't be read any more."""
        if self._entries.pop(_name(key), None) is not None:
            self._lost.add(_name(key))

    def flip(self, index: int) -> StoredKey:
        """Damages an entry, counted from the one that was written longest ago."""
        entry = list(self._entries.values())[index]
        entry.flipped = True
        return entry.key

    def scrub(self) -> list[StoredKey]:
        """Finds and drops the damaged entries."""
        bad = [entry.key for entry in self._entries.values() if entry.flipped]
        for key in bad:
            self.drop(key)
        return bad

    def is_bad(self, key: StoredKey) -> bool:
        """Whether a read of it fails."""
        entry = self._entries.get(_name(key))
        return entry.flipped if entry is not None else _name(key) in self._lost

    def find(self) -> tuple[StoredKey, ...]:
        """What a new store is told, as the disk tier does: each block after its parent, chains in the
        order in which they were last used; and what hangs on nothing is deleted."""
        order: dict[Name, StoredKey] = {}
        for entry in self._entries.values():
            chain: list[StoredKey] = []
            key: StoredKey | None = entry.key
            while key is not None and _name(key) not in order:
                chain.append(key)
                above = self._entries.get((key.namespace, key.tenant, key.parent))
                if above is None and key.parent:
                    chain.clear()
                key = above.key if above is not None else None
            order.update({_name(each): each for each in reversed(chain)})
        self._entries = {name: entry for name, entry in self._entries.items() if name in order}
        return tuple(order.values())


def _name(key: StoredKey) -> Name:
    return key.namespace, key.tenant, key.key


def _session_name(session: SessionName | StoredSession) -> tuple[int, int, str]:
    return session.namespace, session.tenant, session.name
