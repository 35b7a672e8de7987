"""Chat sessions between two turns: which chain of blocks each would go on from.

A session is known by its tenant, namespace and name, and comes to be when a turn of it is freed to be kept
and the work of that turn has completed. It names keys and holds nothing: its blocks may be evicted, and
what is left of the chain is found by its keys. What is bounded is the number of keys; the sessions
that were used longest ago go first. With a disk tier all this outlives the service.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct

from kvstore.core.config import StoreConfig
from kvstore.core.effects import DiskNote, SessionsForgotten, SessionsKept
from kvstore.core.memory import Memory
from kvstore.core.sequences import session_owner
from kvstore.core.types import BlockKey, DomainId, SessionName, StoredSession, domain_id, domain_parts

__all__ = ["Session", "Sessions"]

NO_KEYS: dict[BlockKey, int] = {}
Name = tuple[DomainId, str]


class Session(Struct, frozen=True):
    """The number of the last turn, and the keys of what it left committed, head first; at least one."""

    turn: int
    keys: tuple[BlockKey, ...]


class Sessions:
    """All sessions, the least recent first."""

    def __init__(self, config: StoreConfig, memory: Memory) -> None:
        self._memory = memory
        self._has_disk = config.disk_frames > 0
        self._keys_max = config.session_keys_max
        self._sessions: dict[Name, Session] = {}
        self._key_count = 0
        # What the disk has still to hear of, as things are now. None: nothing is left of it.
        self._changed: dict[Name, Session | None] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def key_count(self) -> int:
        """Keys of all sessions, one that two of them name counted twice."""
        return self._key_count

    def find(self, domain: DomainId, name: str) -> Session | None:
        return self._sessions.get((domain, name))

    def names(self) -> Iterator[Name]:
        return iter(self._sessions)

    def keep(self, domain: DomainId, name: str, turn: int, keys: tuple[BlockKey, ...]) -> None:
        """A turn has ended. It takes the place of the one before, whatever their numbers."""
        if not keys or len(keys) > self._keys_max:
            return
        self._take(domain, name)
        self._put(domain, name, Session(turn, keys))
        self._note(domain, name)
        for (other_domain, other), _ in self._too_many():
            self._take(other_domain, other)
            self._note(other_domain, other)

    def end(self, domain: DomainId, name: str) -> None:
        if self._take(domain, name) is not None:
            self._note(domain, name)

    def restore(self, found: Iterable[StoredSession]) -> None:
        """What the disk kept, the least recent first, once its blocks can be found: of each session the
        leading ones that are there. A session of which nothing is left is forgotten there, too."""
        for stored in found:
            domain = domain_id(stored.namespace, stored.tenant)
            rows = self._memory.prefix.find_prefix(domain, stored.keys, {})
            if not rows:
                self._changed[domain, stored.name] = None
                continue
            owner = session_owner(domain, stored.name)
            self._memory.blocks.name_owner(np.array(rows, np.intp), owner)
            self._memory.decisions.name(domain, owner, stored.name)
            self._take(domain, stored.name)
            self._put(domain, stored.name, Session(stored.turn, stored.keys[: len(rows)]))
        for (domain, name), _ in self._too_many():
            self.end(domain, name)

    def notes(self) -> Iterator[DiskNote]:
        """What the disk is to be told, each once."""
        changed, self._changed = self._changed, {}
        if not self._has_disk:
            return
        gone = [_session_name(domain, name) for (domain, name), left in changed.items() if left is None]
        kept = [_stored(*name, left) for name, left in changed.items() if left is not None]
        if gone:
            yield SessionsForgotten(sessions=tuple(gone))
        if kept:
            yield SessionsKept(sessions=tuple(kept))

    @property
    def has_notes(self) -> bool:
        return bool(self._changed)

    def _put(self, domain: DomainId, name: str, session: Session) -> None:
        self._sessions[domain, name] = session
        self._key_count += len(session.keys)

    def _take(self, domain: DomainId, name: str) -> Session | None:
        session = self._sessions.pop((domain, name), None)
        if session is not None:
            self._key_count -= len(session.keys)
        return session

    def _too_many(self) -> list[tuple[Name, Session]]:
        """The least recent ones that have to go."""
        surplus, chosen = self._key_count - self._keys_max, list[tuple[Name, Session]]()
        for name, session in self._sessions.items():
            if surplus <= 0:
                break
            chosen.append((name, session))
            surplus -= len(session.keys)
        return chosen

    def _note(self, domain: DomainId, name: str) -> None:
        self._changed[domain, name] = self._sessions.get((domain, name))


def _session_name(domain: DomainId, name: str) -> SessionName:
    namespace, tenant = domain_parts(domain)
    return SessionName(namespace=namespace, tenant=tenant, name=name)


def _stored(domain: DomainId, name: str, session: Session) -> StoredSession:
    namespace, tenant = domain_parts(domain)
    return StoredSession(namespace=namespace, tenant=tenant, name=name, turn=session.turn, keys=session.keys)
