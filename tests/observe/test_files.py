"""The journal's files: their bound, their modes, and what a killed writer or a bad disk leaves behind."""

import errno
import logging
import os
import stat
import threading
from pathlib import Path

import pytest

from kvstore.core.effects import Effects
from kvstore.core.errors import JournalInvalid
from kvstore.core.events import Tick
from kvstore.core.types import EngineId
from kvstore.observe import folder as folder_module
from kvstore.observe.folder import SEGMENTS_MAX, JournalFolder, find_segments, segment_name
from kvstore.observe.framing import RECORD_BYTES_MAX
from kvstore.observe.journal import SEGMENTS, Journal
from kvstore.observe.reading import find_runs
from kvstore.observe.records import Entry
from tests.core.world import make_store
from tests.observe.helpers import heading_for, replay

MIB = 1 << 20
LATE = EngineId("wakened " * 500)


def tick(number: int) -> Tick:
    return Tick(time=100.0 + number)


def record(path: Path, events: int, *, bytes_max: int = MIB, epoch: int = 7) -> None:
    """Ticks with 4,000 bytes of effects each."""
    with JournalFolder.claim(path, bytes_max) as claimed:
        journal = Journal(claimed, heading_for(make_store(), epoch))
        for number in range(events):
            journal.write(tick(number), Effects(wake=(LATE,)))
        journal.close()


def last_start(data: bytes) -> int:
    """Where the last record begins."""
    start = offset = 0
    while offset < len(data):
        start, offset = offset, offset + 12 + int.from_bytes(data[offset : offset + 4], "little")
    return start


def entries(path: Path) -> list[Entry]:
    return [entry for run in find_runs(path) for entry in run.entries()]


def size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.iterdir())


# ------------------------------------------------------------------------------ the ring


def test_the_bound_holds_at_every_write_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    append = JournalFolder.append

    def append_and_look(self: JournalFolder, data: bytes) -> None:
        append(self, data)
        sizes.append(size(tmp_path))

    monkeypatch.setattr(JournalFolder, "append", append_and_look)
    record(tmp_path, 1_000)
    assert len(sizes) == 1_000
    assert max(sizes) <= MIB
    assert size(tmp_path) >= MIB * (SEGMENTS - 1) / SEGMENTS - 8_000
    [run] = find_runs(tmp_path)
    kept = [entry.number for entry in run.entries()]
    assert kept == list(range(run.heading.first_entry, 1_001))
    assert run.heading.first_entry > 700
    assert not run.whole


def test_a_run_without_its_beginning_is_told_so_and_has_stories(tmp_path: Path) -> None:
    record(tmp_path, 600)
    done = replay(tmp_path)
    assert done.exit_code == 2
    assert "its beginning is overwritten, kept from entry" in done.output
    assert "can't be replayed without its beginning; --story works" in done.output
    done = replay(tmp_path, "--story", "session=chat")
    assert (done.exit_code, "nothing is known of session=chat" in done.output) == (1, True)


def test_a_new_run_keeps_the_old_one_until_it_needs_the_room(tmp_path: Path) -> None:
    record(tmp_path, 20, epoch=1)
    record(tmp_path, 20, epoch=2)
    assert [run.heading.store_epoch for run in find_runs(tmp_path)] == [1, 2]
    record(tmp_path, 500, epoch=3)
    assert [run.heading.store_epoch for run in find_runs(tmp_path)] == [3]
    assert size(tmp_path) <= MIB


def test_many_short_runs_leave_no_more_files_than_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SEGMENTS_MAX >= 100
    monkeypatch.setattr(folder_module, "SEGMENTS_MAX", 5)
    for epoch in range(8):
        record(tmp_path, 1, epoch=epoch)
    assert [run.heading.store_epoch for run in find_runs(tmp_path)] == [3, 4, 5, 6, 7]


# ------------------------------------------------------------------------------- secrecy


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "made" / "journal"
    mask = os.umask(0)
    try:
        record(path, 300)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()} == {0o600}
    path.chmod(0o755)
    record(path, 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("strange", ["notes.txt", "1.journal", "0000000001.journal.bak"])
def test_a_folder_of_others_is_refused_and_not_touched(tmp_path: Path, strange: str) -> None:
    (tmp_path / strange).write_text("mine")
    tmp_path.chmod(0o755)
    with pytest.raises(JournalInvalid, match="holds what is not kvstore's"):
        JournalFolder.claim(tmp_path, MIB)
    assert [each.name for each in tmp_path.iterdir()] == [strange]
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_one_service_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(JournalInvalid, match="another service writes to it")
    with JournalFolder.claim(tmp_path, MIB), refused:
        JournalFolder.claim(tmp_path, MIB)
    with JournalFolder.claim(tmp_path, MIB):
        pass


def test_a_path_that_can_not_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(JournalInvalid) as refused:
            JournalFolder.claim(path, MIB)
        assert (refused.value.field, refused.value.value) == ("--journal", str(path))


# -------------------------------------------------------------------- torn and damaged


def test_whatever_of_the_last_record_is_missing_the_rest_is_read(tmp_path: Path) -> None:
    record(tmp_path, 3)
    [segment] = find_segments(tmp_path)
    whole = segment.read_bytes()
    [run] = find_runs(tmp_path)
    all_entries = list(run.entries())
    assert not run.torn
    start = last_start(whole)
    last_bytes = len(whole) - start
    lost_power = whole[:start] + bytes(last_bytes)
    for left in (*(whole[:-cut] for cut in (1, 100, last_bytes - 12, last_bytes - 1)), lost_power):
        segment.write_bytes(left)
        [run] = find_runs(tmp_path)
        assert list(run.entries()) == all_entries[:2]
        assert run.torn.startswith(f"{segment.name} ends in ")
        done = replay(tmp_path, "--story", "session=any")
        assert "of an unfinished record: left out" in done.output


def test_what_was_killed_before_its_heading_is_no_run(tmp_path: Path) -> None:
    record(tmp_path, 3)
    (tmp_path / segment_name(2)).write_bytes(b"")
    (tmp_path / segment_name(3)).write_bytes(find_segments(tmp_path)[0].read_bytes()[:50])
    assert [len(list(run.entries())) for run in find_runs(tmp_path)] == [3]


def test_damage_is_refused_by_file_and_offset(tmp_path: Path) -> None:
    record(tmp_path, 3)
    [segment] = find_segments(tmp_path)
    whole = segment.read_bytes()
    heading_bytes = 12 + int.from_bytes(whole[:4], "little")
    for place, found in (
        (heading_bytes, f"damaged at offset {heading_bytes}: the length of a record"),
        (heading_bytes + 5, f"damaged at offset {heading_bytes}: the length of a record"),
        (heading_bytes + 9, f"damaged at offset {heading_bytes}: a record of 4"),
        (heading_bytes + 99, f"damaged at offset {heading_bytes}: a record of 4"),
        (3, "not a journal"),
    ):
        segment.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(JournalInvalid, match=found) as refused:
            entries(tmp_path)
        assert refused.value.value == str(segment)


def test_a_length_beyond_all_bounds_is_refused_whatever_its_check_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert RECORD_BYTES_MAX < 2**31
    record(tmp_path, 1)
    monkeypatch.setattr("kvstore.observe.framing.RECORD_BYTES_MAX", 3_000)
    with pytest.raises(JournalInvalid, match="damaged at offset"):
        entries(tmp_path)


def test_a_missing_segment_is_told(tmp_path: Path) -> None:
    record(tmp_path, 200)
    segments = find_segments(tmp_path)
    assert len(segments) > 4
    segments[2].unlink()
    with pytest.raises(JournalInvalid, match=r"entry \d+ is missing: entry \d+ follows"):
        entries(tmp_path)
    assert entries(segments[3])


def test_other_files_and_no_files_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("It was a dark and stormy night. " * 10)
    for path, found in ((text, "not a journal"), (tmp_path / "none", "No such file")):
        done = replay(path)
        assert isinstance(done.exception, JournalInvalid)
        assert found in str(done.exception)
    assert "no run is recorded there" in str(replay(tmp_path).exception)


# ------------------------------------------------------------- what the store won't notice


def test_a_full_disk_ends_the_journal_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = 0
    write = os.write

    def write_some(fd: int, data: memoryview) -> int:
        nonlocal written
        if written > 20_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        written += write(fd, data[:3_000])
        return min(3_000, len(data))

    monkeypatch.setattr(os, "write", write_some)
    with caplog.at_level(logging.WARNING):
        record(tmp_path, 100)
    warnings = [line for line in caplog.messages if "no more is written to the journal" in line]
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0]
    assert 0 < len(entries(tmp_path)) < 10


def test_a_record_that_the_whole_journal_has_no_room_for_ends_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with JournalFolder.claim(tmp_path, MIB) as claimed:
        journal = Journal(claimed, heading_for(make_store()))
        journal.write(tick(1), Effects())
        journal.write(tick(2), Effects(wake=(LATE,) * 300))
        journal.write(tick(3), Effects())
        journal.close()
    assert "more than a journal of 1048576 holds" in caplog.text
    assert [entry.number for entry in entries(tmp_path)] == [1]


def test_what_can_not_be_written_down_ends_the_journal_not_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with JournalFolder.claim(tmp_path, MIB) as claimed:
        journal = Journal(claimed, heading_for(make_store()))
        journal.write(tick(1), Effects())
        journal.write(tick(2), Effects(wake=(EngineId("\ud800"),)))
        journal.write(tick(3), Effects())
        journal.close()
        journal.write(tick(4), Effects())
    assert "no more is written to the journal" in caplog.text
    assert [entry.number for entry in entries(tmp_path)] == [1]


def test_a_disk_that_can_not_keep_up_ends_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kvstore.observe.writing.WAITING_BYTES_MAX", 10_000)
    full, append = threading.Event(), JournalFolder.append

    def append_when_full(self: JournalFolder, data: bytes) -> None:
        full.wait(60)
        append(self, data)

    monkeypatch.setattr(JournalFolder, "append", append_when_full)
    with JournalFolder.claim(tmp_path, MIB) as claimed:
        journal = Journal(claimed, heading_for(make_store()))
        for number in range(20):
            journal.write(tick(number), Effects(wake=(LATE,)))
        full.set()
        journal.close()
    assert "10000 bytes wait for the disk already" in caplog.text
    # What had been taken is written all the same, however late.
    assert [entry.number for entry in entries(tmp_path)] == [1, 2, 3]
