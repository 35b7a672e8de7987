"""Whether all that was to be deleted is off the disk, for good: what a Forget waits for."""

import threading
import time
from pathlib import Path

import lmdb
import pytest
from msgspec.structs import replace

from kvstore.core.effects import DiskDelete, DiskSync, SessionsForgotten, SessionsKept
from kvstore.core.types import BlockKey, NamespaceId, SessionName, StoredSession, SyncId, TenantId
from kvstore.tiers.disk import DiskWriteFailed
from kvstore.tiers.moves import tell_disk
from tests.tiers.helpers import chain, open_tier, read, stored, write

SMALL = 4 << 20
SIZE = 100_000
NAME = SessionName(namespace=NamespaceId(1), tenant=TenantId(1), name="chat")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def disk(tmp_path: Path, clock):
    tier = open_tier(tmp_path, SMALL, SIZE, clock=clock)
    yield tier
    assert tier.close(60)


def fails(*arguments):
    raise lmdb.DiskError("I/O error")


def kept(*keys: BlockKey) -> StoredSession:
    return StoredSession(namespace=NAME.namespace, tenant=NAME.tenant, name=NAME.name, turn=1, keys=keys)


def test_where_nothing_is_owed_all_is_durable(disk):
    assert disk.settle()
    write(disk, chain(3), SIZE)
    disk.delete([stored(2)])
    assert disk.settle()


def test_a_delete_that_has_failed_is_tried_again_and_until_then_it_says_no(disk, monkeypatch):
    write(disk, chain(3), SIZE)
    monkeypatch.setattr(disk._table, "remove", fails)
    disk.delete([stored(2)])
    assert not disk.settle()
    monkeypatch.undo()
    assert disk.settle()
    assert read(disk, stored(2), SIZE) is None


def test_a_session_that_could_not_be_forgotten_counts_and_one_that_could_not_be_kept_does_not(
    disk, clock, monkeypatch
):
    write(disk, chain(3), SIZE)
    monkeypatch.setattr(disk._table, "put_sessions", fails)
    disk.keep_sessions([kept(stored(0).key)])
    assert disk.settle()
    disk.forget_sessions([NAME])
    assert not disk.settle()
    monkeypatch.undo()
    assert not disk.settle(), "it is not tried before the pause is over"
    clock.now += 100
    assert disk.settle()


def test_a_transaction_that_was_given_up_as_late_is_waited_for(tmp_path, monkeypatch):
    """It may bring blocks to the disk that nobody knows of, and that were forgotten since."""
    disk = open_tier(tmp_path, SMALL, SIZE, deadline_seconds=1.0)
    write(disk, [stored(50)], SIZE)
    go, put = threading.Event(), disk._table.put

    def late(*arguments):
        assert go.wait(60)
        return put(*arguments)

    monkeypatch.setattr(disk._table, "put", late)
    with pytest.raises(DiskWriteFailed, match="not returned"):
        write(disk, chain(2), SIZE)
    assert not disk.settle()
    go.set()
    while disk.late_count:
        time.sleep(0.001)
    assert disk.settle()
    assert [read(disk, key, SIZE) for key in chain(2)] == [None, None]
    assert disk.close(60)


def test_the_disk_knows_which_session_has_committed_a_block(tmp_path, disk):
    owner = 2**63 - 1
    write(disk, [replace(stored(0), owner=owner), stored(1, parent=0)], SIZE)
    assert disk.close(60)
    again = open_tier(tmp_path, SMALL, SIZE)
    assert {key.key: key.owner for key in again.found(SIZE)} == {stored(0).key: owner, stored(1).key: 0}
    assert again.close(60)


def test_uses_told_together_keep_their_order(tmp_path, disk):
    """The clock may stand still in between."""
    keys = [stored(n) for n in range(5)]
    write(disk, keys, SIZE)
    disk.note_uses([keys[3], keys[0], keys[4], keys[1]])
    assert disk.close(60)
    again = open_tier(tmp_path, SMALL, SIZE)
    order = [key.key for key in again.found(SIZE)]
    assert order == [keys[n].key for n in (2, 3, 0, 4, 1)]
    assert again.close(60)


def test_what_the_disk_is_told_is_done_and_answered(disk, monkeypatch):
    write(disk, chain(3), SIZE)
    answers: list[tuple[int, bool]] = []
    for told in (
        SessionsKept(sessions=(kept(stored(0).key),)),
        DiskDelete(keys=(stored(2),)),
        SessionsForgotten(sessions=(NAME,)),
        DiskSync(sync=SyncId(7)),
    ):
        tell_disk(disk, lambda sync, failed: answers.append((sync, failed)), told)
    assert answers == [(7, False)]
    assert read(disk, stored(2), SIZE) is None
    monkeypatch.setattr(disk._table, "remove", fails)
    disk.delete([stored(1)])
    tell_disk(disk, lambda sync, failed: answers.append((sync, failed)), DiskSync(sync=SyncId(8)))
    assert answers[1:] == [(8, True)]
