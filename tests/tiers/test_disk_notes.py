"""Notes on disk: kept over a restart, and none rather than a wrong one."""

import lmdb
import pytest

from kvstore.core.errors import CheckFailed
from kvstore.tiers.disk_notes import NOTE_BYTES_MAX
from kvstore.tiers.disk_table import BlockTable
from tests.tiers.helpers import change_raw, open_tier


def test_a_note_is_there_after_a_restart_the_last_one_of_its_name(tmp_path):
    disk = open_tier(tmp_path)
    assert disk.notes.get("rates") == b""
    for data in (b"first", b"second", b"x" * NOTE_BYTES_MAX):
        disk.notes.put("rates", data)
        assert disk.notes.get("rates") == data
    disk.notes.put("other", b"")
    disk.close()
    disk = open_tier(tmp_path)
    assert disk.notes.get("rates") == b"x" * NOTE_BYTES_MAX
    assert disk.notes.get("other") == b""
    disk.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record[:-1],
        lambda record: record[:5],
        lambda record: record + b"!",
        lambda record: bytes([record[0] ^ 1]) + record[1:],
        lambda record: record[:-1] + bytes([record[-1] ^ 1]),
        lambda record: None,
    ],
)
def test_a_damaged_note_is_none(tmp_path, change):
    disk = open_tier(tmp_path)
    disk.notes.put("rates", b"figures")
    disk.close()
    change_raw(tmp_path, "meta", b"note rates", change)
    disk = open_tier(tmp_path)
    assert disk.notes.get("rates") == b""
    disk.notes.put("rates", b"again")
    assert disk.notes.get("rates") == b"again"
    disk.close()


def test_a_note_of_another_name_is_none(tmp_path):
    """Its checksum is over its name too."""
    disk = open_tier(tmp_path)
    disk.notes.put("rates", b"figures")
    disk.close()
    records: list[bytes] = []

    def look(record: bytes) -> bytes:
        records.append(record)
        return record

    change_raw(tmp_path, "meta", b"note rates", look)
    change_raw(tmp_path, "meta", b"note other", lambda _: records[0])
    disk = open_tier(tmp_path)
    assert disk.notes.get("other") == b""
    assert disk.notes.get("rates") == b"figures"
    disk.close()


def test_an_index_that_fails_costs_the_note_and_no_more(tmp_path, monkeypatch):
    def fails(*_):
        raise lmdb.Error("I/O error")

    disk = open_tier(tmp_path)
    monkeypatch.setattr(BlockTable, "put_note", fails)
    monkeypatch.setattr(BlockTable, "note", fails)
    disk.notes.put("rates", b"figures")
    assert disk.notes.get("rates") == b""
    disk.close()


def test_a_note_beyond_the_bound_is_a_bug(tmp_path):
    disk = open_tier(tmp_path)
    with pytest.raises(CheckFailed):
        disk.notes.put("rates", bytes(NOTE_BYTES_MAX + 1))
    disk.close()
