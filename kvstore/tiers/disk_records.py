"""What the disk's index says beside its blocks: when each was used, and which sessions there are.

Both are advice. A wrong time of use costs a block its place in the order of eviction, so it bears no
checksum; a session that can't be read is as good as forgotten.
"""

import struct

from kvstore.core.errors import check
from kvstore.core.types import BlockKey, NamespaceId, SessionName, StoredSession, TenantId
from kvstore.tiers.disk_format import SUM_BYTES, record_sum

__all__ = [
    "USE_BYTES",
    "count_use",
    "pack_session",
    "session_key",
    "session_key_count",
    "unpack_session",
]

KEY_BYTES = 32
SESSION_VERSION = 1

# When the block was last used, in ns since 1970, and how often.
_USE = struct.Struct(">QI")
USE_BYTES = _USE.size
_SESSION = struct.Struct(">BQQ")
_SESSION_KEY = struct.Struct(">II")


def count_use(record: bytes, time_ns: int) -> bytes:
    """The record after one use more; it is empty before the first."""
    count = _USE.unpack(record)[1] if len(record) == _USE.size else 0
    return _USE.pack(time_ns, min(count + 1, 2**32 - 1))


def session_key(session: SessionName | StoredSession) -> bytes:
    return _SESSION_KEY.pack(session.namespace, session.tenant) + session.name.encode()


def session_key_count(record: bytes) -> int:
    """Also of a record that is damaged: at least what it takes room for."""
    return max(0, len(record) - _SESSION.size - SUM_BYTES) // KEY_BYTES


def pack_session(session: StoredSession, time_ns: int) -> bytes:
    check(
        all(len(key) == KEY_BYTES for key in session.keys), f"session {session.name!r}: a key of wrong length"
    )
    fields = _SESSION.pack(SESSION_VERSION, session.turn, time_ns) + b"".join(session.keys)
    return fields + record_sum("sessions", session_key(session), fields)


def unpack_session(name: bytes, record: bytes) -> tuple[StoredSession, int]:
    """The session, and when it was kept, in ns since 1970. ValueError where this isn't one."""
    fields, total = record[:-SUM_BYTES], record[-SUM_BYTES:]
    if len(fields) < _SESSION.size or (len(fields) - _SESSION.size) % KEY_BYTES:
        raise ValueError(f"not a session: {len(record)} bytes")
    if total != record_sum("sessions", name, fields) or fields[0] != SESSION_VERSION:
        raise ValueError("wrong checksum or version of a session")
    namespace, tenant = _SESSION_KEY.unpack_from(name)
    _, turn, time_ns = _SESSION.unpack_from(fields)
    keys = fields[_SESSION.size :]
    session = StoredSession(
        namespace=NamespaceId(namespace),
        tenant=TenantId(tenant),
        name=name[_SESSION_KEY.size :].decode(),
        turn=turn,
        keys=tuple(BlockKey(keys[at : at + KEY_BYTES]) for at in range(0, len(keys), KEY_BYTES)),
    )
    return session, time_ns
