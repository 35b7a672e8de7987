"""What a restart finds beside the blocks: which were of use, and the sessions."""

from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from kvstore.core.types import NamespaceId, SessionName, StoredSession, TenantId
from kvstore.tiers import disk_sessions
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.disk_format import block_name
from kvstore.tiers.disk_records import pack_session, session_key, unpack_session
from tests.tiers.helpers import BLOCK, CAP, chain, change_raw, key_of, open_tier, stored, taken_bytes, write


@pytest.fixture
def disk(tmp_path: Path):
    tier = open_tier(tmp_path)
    yield tier
    tier.close()


def reopen(disk: DiskTier, cap: int = CAP) -> DiskTier:
    disk.close()
    return open_tier(disk.folder, cap)


def session(name: str, turn: int, keys: range, tenant: int = 1) -> StoredSession:
    return StoredSession(
        namespace=NamespaceId(1),
        tenant=TenantId(tenant),
        name=name,
        turn=turn,
        keys=tuple(key_of(number) for number in keys),
    )


def name_of(name: str) -> SessionName:
    return SessionName(namespace=NamespaceId(1), tenant=TenantId(1), name=name)


# --------------------------------------------------------------------------------- uses


def test_what_was_used_last_is_told_last(disk):
    for first in (0, 10, 20):
        write(disk, chain(3, first))
    disk.note_uses(chain(3, 10)[:2])
    with closing(reopen(disk)) as again:
        assert again.found(BLOCK) == [*chain(3), *chain(3, 20), *chain(3, 10)]
        again.note_uses(chain(3))
    with closing(open_tier(disk.folder)) as again:
        assert again.found(BLOCK) == [*chain(3, 20), *chain(3, 10), *chain(3)]


def test_uses_of_what_is_gone_leave_nothing(disk):
    write(disk, chain(3))
    disk.note_uses([*chain(3), stored(99)])
    disk.delete(chain(3))
    disk.note_uses(chain(3))
    assert disk._table.read_uses() == {}


def test_a_use_in_the_future_or_a_damaged_one_counts_as_none(disk):
    write(disk, chain(3))
    write(disk, chain(3, 10))
    disk.note_uses([*chain(3), *chain(3, 10)])
    disk.close()
    change_raw(disk.folder, "uses", block_name(stored(0)), lambda value: b"\xff" + value[1:])
    for number in (1, 2):
        change_raw(disk.folder, "uses", block_name(stored(number)), lambda value: value[:3])
    with closing(open_tier(disk.folder)) as again:
        assert again.found(BLOCK) == [*chain(3), *chain(3, 10)]


def test_a_use_that_cannot_be_noted_only_degrades(disk, monkeypatch):
    def fails(names, time_ns):
        raise lmdb.MapFullError("full")

    write(disk, chain(2))
    monkeypatch.setattr(disk._table, "note_uses", fails)
    disk.note_uses(chain(2))
    assert "MapFull" in disk.degraded_reason


# ----------------------------------------------------------------------------- sessions


def test_sessions_survive_and_are_replaced_and_forgotten(disk):
    write(disk, chain(5))
    disk.keep_sessions([session("a", 1, range(2)), session("b", 7, range(3)), session("c", 1, range(1))])
    disk.keep_sessions([session("a", 2, range(5)), session("b", 8, range(4), tenant=2)])
    disk.forget_sessions([name_of("c"), name_of("never there")])
    write(disk, [stored(0, tenant=2)])
    with closing(reopen(disk)) as again:
        assert again.sessions() == [
            session("b", 7, range(3)),
            session("a", 2, range(5)),
            session("b", 8, range(4), tenant=2),
        ]


def test_a_session_without_any_block_left_is_dropped(disk):
    write(disk, chain(5))
    disk.keep_sessions([session("whole", 1, range(5)), session("half", 1, range(3, 9))])
    disk.keep_sessions([session("none", 1, range(10, 15)), session("empty", 1, range(0))])
    with closing(reopen(disk)) as again:
        assert [each.name for each in again.sessions()] == ["half", "whole"]
        assert len(again._table.read_sessions()) == 2


def test_a_damaged_session_is_dropped(disk):
    write(disk, chain(5))
    disk.keep_sessions([session("good", 1, range(5)), session("bad", 1, range(5))])
    disk.close()
    change_raw(
        disk.folder, "sessions", session_key(name_of("bad")), lambda value: value[:20] + b"?" + value[21:]
    )
    with closing(open_tier(disk.folder)) as again:
        assert [each.name for each in again.sessions()] == ["good"]
        assert len(again._table.read_sessions()) == 1


def test_any_bit_of_a_session_counts():
    kept = session("a", 3, range(2))
    name, record = session_key(kept), pack_session(kept, 5)
    assert unpack_session(name, record) == (kept, 5)
    for bit in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="session"):
            unpack_session(name, bytes(damaged))
    for cut in range(len(record)):
        with pytest.raises(ValueError, match="session"):
            unpack_session(name, record[:cut])
    with pytest.raises(ValueError, match="session"):
        unpack_session(session_key(session("b", 3, range(2))), record)


def test_sessions_are_bounded_by_their_keys_and_the_oldest_go(tmp_path):
    cap = 4 << 20
    with closing(open_tier(tmp_path, cap, 100_000)) as disk:
        write(disk, chain(5), 100_000)
        slots = disk.capacity_blocks(100_000, 1)
        for number in range(100):
            disk.keep_sessions([session(f"s{number:02}", 1, range(number % 7))])
        sizes = [disk_sessions.HEAD_KEYS + number % 7 for number in range(100)]
        held = len(disk._table.read_sessions())
        assert sum(sizes[-held:]) <= 2 * slots < sum(sizes[-held - 1 :])
        # One that is too large by itself is not kept, nor what was there under its name.
        disk.keep_sessions([session("s99", 2, range(2 * slots))])
        assert len(disk._table.read_sessions()) == held - 1
    with closing(open_tier(tmp_path, cap, 100_000)) as disk:
        names = [f"s{number:02}" for number in range(100 - held, 99) if number % 7]
        assert [each.name for each in disk.sessions()] == names
        assert taken_bytes(tmp_path) <= cap


def test_what_cannot_be_written_now_is_written_with_the_next(tmp_path, monkeypatch):
    now = 0.0
    with closing(open_tier(tmp_path, clock=lambda: now)) as disk:
        write(disk, chain(2))
        disk.keep_sessions([session("gone", 1, range(2))])

        def fails(records, forgotten):
            raise lmdb.DiskError("I/O error")

        monkeypatch.setattr(disk._table, "put_sessions", fails)
        disk.keep_sessions([session("a", 1, range(2))])
        assert disk.degraded
        monkeypatch.undo()
        disk.forget_sessions([name_of("gone")])
        disk.keep_sessions([session("a", 2, range(2))])
        assert len(disk._table.read_sessions()) == 1, "not tried again yet"
        now = 100.0
        write(disk, chain(2))
    with closing(open_tier(tmp_path)) as disk:
        assert disk.sessions() == [session("a", 2, range(2))]
