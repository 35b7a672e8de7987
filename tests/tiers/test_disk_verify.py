"""`kvstore verify`: whatever is done to a folder, it says what is wrong; repaired, what is left is served."""

import errno
import fcntl
import json
import os
import random
import shutil
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvstore.cli.main import app
from kvstore.core.errors import DiskInvalid
from kvstore.core.types import NamespaceId, StoredSession, TenantId
from kvstore.tiers import disk_dump, index_walk
from kvstore.tiers.disk import DiskTier, ReadOutcome
from kvstore.tiers.disk_dump import check_index
from kvstore.tiers.disk_format import block_name
from kvstore.tiers.disk_verify import Report, verify
from kvstore.tiers.files import DirectFiles
from kvstore.tiers.index_check import PageFault
from tests.tiers.helpers import (
    BLOCK,
    chain,
    change_bytes,
    change_raw,
    frames,
    key_of,
    open_tier,
    stored,
    taken_bytes,
    write,
)

SLOT = 12_288
SMALL = 5 << 20
COUNT = 120


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Five segments, chains of ten, uses and a session."""
    folder = tmp_path_factory.mktemp("made")
    with closing(open_tier(folder, SMALL)) as tier:
        tier.names.writer_id("engine", "build")
        for first in range(0, COUNT, 10):
            write(tier, chain(10, first))
        tier.note_uses(chain(10, 20))
        tier.keep_sessions(
            [
                StoredSession(
                    namespace=NamespaceId(1),
                    tenant=TenantId(1),
                    name="chat",
                    turn=3,
                    keys=tuple(key_of(n) for n in range(10)),
                )
            ]
        )
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "folder"))


def look(folder: Path, *, repair: bool = False) -> Report:
    return verify(folder, repair=repair, progress=lambda done, total: None)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def check_repaired(folder: Path, good: int) -> None:
    """All that is left is served, and there is room for all else."""
    assert look(folder).is_good
    with closing(open_tier(folder, SMALL)) as tier:
        found = tier.found(BLOCK)
        assert len(found) == good
        outcomes = tier.read(found, [frames() for _ in found])
        assert outcomes == [ReadOutcome.GOOD] * good
        assert tier.counts.bad_entries == tier.counts.orphans == 0
        room = tier.capacity_blocks(BLOCK, 1) - good
        write(tier, [stored(5_000 + n) for n in range(room)])
    assert taken_bytes(folder) <= SMALL
    assert look(folder).is_good


# ----------------------------------------------------------------------------- one by one


def test_a_good_folder_is_good_and_left_as_it_is(folder):
    before = content(folder)
    seen: list[tuple[int, int]] = []
    report = verify(folder, repair=True, progress=lambda done, total: seen.append((done, total)))
    assert report.is_good
    assert (report.blocks_good, report.bytes_good, report.sessions_good) == (COUNT, COUNT * BLOCK, 1)
    assert seen[-1] == (COUNT * SLOT, COUNT * SLOT)
    assert content(folder) == before


def test_wrong_bytes_are_found_with_what_hangs_on_them(folder):
    change_bytes(folder, stored(6), SLOT, lambda value: b"?" + value[1:])
    change_bytes(folder, stored(50), SLOT, lambda value: bytes(len(value)))
    before = content(folder)
    report = look(folder)
    assert report.damages == {"bytes": 2, "orphan": 3 + 9}
    assert {each.what for each in report.listed if each.kind == "bytes"} == {
        block_name(stored(n)).hex() for n in (6, 50)
    }
    assert content(folder) == before
    assert look(folder, repair=True).repaired
    check_repaired(folder, COUNT - 14)


@pytest.mark.parametrize(
    ("table", "name", "change", "damages", "good"),
    [
        ("blocks", block_name(stored(9)), lambda v: v[:-1] + b"?", {"entry": 1}, COUNT - 1),
        ("blocks", b"strange", lambda v: b"entry", {"entry": 1}, COUNT),
        ("tenants", b"default", lambda v: b"?" + v[1:], {"name": 1 + COUNT}, 0),
        ("writers", b"engine\0build", lambda v: b"?" + v[1:], {"name": 1}, COUNT),
        ("namespaces", b"f" * 32, lambda v: None, {"name": COUNT}, 0),
        ("meta", b"geometry", lambda v: b"?" + v[1:], {"meta": 1, "segment": 5}, 0),
        ("meta", b"geometry", lambda v: None, {"meta": 1, "segment": 5}, 0),
        ("meta", b"magic", lambda v: b"?" + v[1:], {"meta": 1}, COUNT),
        ("meta", b"format", lambda v: v[:2], {"meta": 1}, COUNT),
    ],
)
def test_damaged_records(folder, table, name, change, damages, good):
    change_raw(folder, table, name, change)
    assert look(folder).damages == damages
    assert look(folder, repair=True).repaired
    check_repaired(folder, good)


def test_a_missing_and_a_cut_off_segment_and_swapped_ones(folder):
    segments = sorted(folder.glob("segment-*"))
    assert len(segments) == 5
    os.truncate(segments[0], SLOT + 100)
    segments[1].rename(folder / "aside")
    segments[2].rename(segments[1])
    (folder / "aside").rename(segments[2])
    segments[4].unlink()
    report = look(folder)
    assert set(report.damages) == {"bytes", "place", "segment", "orphan"}
    assert look(folder, repair=True).repaired
    check_repaired(folder, report.blocks_good)
    assert report.blocks_good > 0


def test_the_index_of_another_folder(folder, tmp_path):
    with closing(open_tier(tmp_path / "other", SMALL)) as tier:
        write(tier, chain(20, 300))
    shutil.copy(tmp_path / "other" / "data.mdb", folder / "data.mdb")
    report = look(folder)
    assert report.damages["bytes"] == 20
    assert report.blocks_good == 0
    assert look(folder, repair=True).repaired
    check_repaired(folder, 0)


def test_no_index_at_all(folder):
    (folder / "data.mdb").unlink()
    assert look(folder).damages == {"index": 1, "segment": 5}
    assert look(folder, repair=True).repaired
    check_repaired(folder, 0)


def test_strange_files_are_told_and_left_alone(folder):
    (folder / "thesis.txt").write_text("mine")
    (folder / "segment-notes").mkdir()
    report = look(folder, repair=True)
    assert report.is_good
    assert report.strange_files == ["segment-notes", "thesis.txt"]


# ------------------------------------------------------------------------------- refusals


def make_link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "nowhere")


def make_socket(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFSOCK)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, make_socket, make_link])
def test_what_only_has_the_name_of_a_segment_costs_its_slots_and_no_more(folder, make):
    path = folder / "segment-000007"
    make(path)
    assert look(folder, repair=True).strange_files == [path.name]
    with closing(open_tier(folder, SMALL)) as tier:
        room = tier.capacity_blocks(BLOCK, 1) - COUNT
        write(tier, [stored(5_000 + n) for n in range(room)])
        assert (tier.held_blocks, tier.degraded) == (COUNT + room, False)
    assert os.path.lexists(path)
    assert not path.is_file()
    assert not (folder.parent / "nowhere").exists()
    assert look(folder).blocks_good == COUNT + room


def test_what_a_segment_leads_to_is_never_touched(folder, tmp_path):
    """Neither made shorter, nor closed to others, nor filled with blocks, nor repaired."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"x" * SMALL)
    precious.chmod(0o644)
    for name in ("segment-000001", "segment-000009", "segment-123456"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(precious)
    with closing(open_tier(folder, SMALL)) as tier:
        good = len(tier.found(BLOCK))
        write(tier, [stored(5_000 + n) for n in range(tier.capacity_blocks(BLOCK, 1) - good)])
    assert 0 < good < COUNT
    look(folder, repair=True)
    assert precious.read_bytes() == b"x" * SMALL
    assert stat.S_IMODE(precious.stat().st_mode) == 0o644


def test_of_two_names_for_one_file_only_one_is_written_to(folder):
    """As a tool leaves it that makes one file of equal ones."""
    (folder / "segment-000001").unlink()
    (folder / "segment-000001").hardlink_to(folder / "segment-000000")
    with closing(open_tier(folder, SMALL)) as tier:
        found = tier.found(BLOCK)
        outcomes = tier.read(found, [frames() for _ in found])
        keys = [key for key, outcome in zip(found, outcomes, strict=True) if outcome is ReadOutcome.GOOD]
        for n in range(tier.capacity_blocks(BLOCK, 1) - len(keys)):
            keys.append(stored(5_000 + n))
            write(tier, keys[-1:])
        assert tier.read(keys, [frames() for _ in keys]) == [ReadOutcome.GOOD] * len(keys)


def test_a_segment_has_one_spelling(folder):
    names = ["segment-0", "segment-00", "segment-99999999999999999999"]
    for name in names:
        (folder / name).write_bytes(b"somebody's")
    assert look(folder, repair=True).strange_files == names
    with closing(open_tier(folder, SMALL)) as tier:
        assert len(tier.found(BLOCK)) == COUNT
    assert all((folder / name).read_bytes() == b"somebody's" for name in names)


def test_what_is_not_ours_or_in_use_is_refused(folder, tmp_path):
    with pytest.raises(DiskInvalid, match="not a folder"):
        look(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DiskInvalid, match="not kvstore's"):
        look(tmp_path / "empty")
    with closing(DiskTier.open(folder, SMALL)), pytest.raises(DiskInvalid, match=f"pid {os.getpid()}"):
        look(folder)
    change_raw(folder, "meta", b"format", lambda _: (2).to_bytes(4))
    with pytest.raises(DiskInvalid, match="format 2"):
        look(folder, repair=True)
    (folder / "kvstore.lock").unlink()
    change_raw(folder, "meta", b"magic", lambda _: b"theirs")
    with pytest.raises(DiskInvalid, match="not kvstore's"):
        look(folder, repair=True)


def test_no_service_starts_meanwhile(folder):
    def progress(done: int, total: int) -> None:
        with pytest.raises(DiskInvalid, match="in use"):
            DiskTier.open(folder, SMALL)

    assert verify(folder, repair=False, progress=progress).is_good
    with (folder / "kvstore.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


# ---------------------------------------------------------------------------- at random


def flip_bits(folder: Path, draw: random.Random) -> None:
    path = draw.choice(sorted(folder.iterdir()))
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 1, 20]) if data else 0):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def flip_in_index(folder: Path, draw: random.Random) -> None:
    """In the headers of pages and the tables of what is in them."""
    path = folder / "data.mdb"
    data = bytearray(path.read_bytes())
    page = draw.randrange(len(data) // 4096)
    for _ in range(draw.choice([1, 2, 30])):
        data[page * 4096 + draw.randrange(64)] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def zero(folder: Path, draw: random.Random) -> None:
    path = draw.choice(sorted(folder.iterdir()))
    data = bytearray(path.read_bytes())
    start = draw.randrange(len(data) + 1)
    end = min(len(data), start + draw.choice([1, 512, 4096, 100_000]))
    data[start:end] = bytes(end - start)
    path.write_bytes(data)


def cut(folder: Path, draw: random.Random) -> None:
    path = draw.choice(sorted(folder.iterdir()))
    os.truncate(path, draw.randrange(path.stat().st_size + 1))


def swap_pages(folder: Path, draw: random.Random) -> None:
    path = draw.choice([folder / "data.mdb", *folder.glob("segment-*")])
    data = bytearray(path.read_bytes())
    one, two = (draw.randrange(len(data) // 4096) * 4096 for _ in range(2))
    data[one : one + 4096], data[two : two + 4096] = data[two : two + 4096], data[one : one + 4096]
    path.write_bytes(data)


def junk(folder: Path, draw: random.Random) -> None:
    path = draw.choice(sorted(folder.iterdir()))
    path.write_bytes(draw.randbytes(draw.choice([0, 10, 8192, 70_000])))


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("damage", [flip_bits, flip_in_index, zero, cut, swap_pages, junk])
def test_case_4_14_any_damage_is_survived_and_repaired(
    folder: Path, damage: Callable[[Path, random.Random], None], seed: int
):
    draw = random.Random(f"{damage.__name__} {seed}")
    for _ in range(draw.choice([1, 1, 3])):
        damage(folder, draw)
    try:
        report = look(folder)
        repaired = look(folder, repair=True)
    except DiskInvalid:
        return
    assert report.damages == repaired.damages
    check_repaired(folder, report.blocks_good)


def test_an_index_that_ends_whoever_reads_it_is_refused_and_told(folder, monkeypatch):
    program = folder.parent / "dies.py"
    program.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setattr(index_walk, "__file__", str(program))
    assert look(folder).damages == {"index": 1, "meta": 1, "segment": 5}
    # Without its mark nobody knows whose the index is, and so how it may look.
    (folder / "kvstore.lock").unlink()
    with pytest.raises(DiskInvalid, match="signal 11") as refusal:
        check_index(folder)
    assert "kvstore verify --repair" in refusal.value.remedy


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "signal 9"),
        ("raise ImportError\n", "status 1"),
    ],
)
def test_a_repair_drops_nothing_because_its_helper_could_not_look(folder, monkeypatch, program, why):
    """As one that memory ran out for."""
    path = folder.parent / "helper.py"
    path.write_text(program)
    before = content(folder)
    monkeypatch.setattr(index_walk, "__file__", str(path))
    with pytest.raises(DiskInvalid, match=why):
        look(folder, repair=True)
    assert content(folder) == before
    (folder / "kvstore.lock").unlink()
    with pytest.raises(DiskInvalid, match=why):
        check_index(folder)


def test_a_repair_drops_nothing_that_it_may_not_read(folder):
    class Closed(DirectFiles):
        def open(self, path: Path) -> int:
            if path.name == "segment-000002":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return super().open(path)

    before = content(folder)
    with pytest.raises(DiskInvalid, match="segment-000002: Permission denied"):
        verify(folder, repair=True, progress=lambda done, total: None, files=Closed())
    assert content(folder) == before


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, make_socket])
def test_a_repair_drops_nothing_where_the_index_is_no_file(folder, make):
    (folder / "data.mdb").rename(folder.parent / "kept")
    make(folder / "data.mdb")
    segments = sorted(folder.glob("segment-*"))
    with pytest.raises(DiskInvalid, match=r"data\.mdb"):
        look(folder, repair=True)
    with pytest.raises(DiskInvalid, match=r"data\.mdb"):
        check_index(folder)
    assert sorted(folder.glob("segment-*")) == segments


def test_a_pipe_in_the_place_of_the_lock_holds_nobody_up(folder):
    (folder / "kvstore.lock").unlink()
    os.mkfifo(folder / "kvstore.lock")
    assert look(folder).blocks_good == COUNT
    check_index(folder)


def test_an_index_in_use_is_not_taken_to_be_damaged(folder, monkeypatch):
    def torn(path: Path) -> None:
        raise PageFault("read while it was written")

    monkeypatch.setattr(disk_dump, "check_pages", torn)
    with closing(open_tier(folder, SMALL)):
        check_index(folder)
        with pytest.raises(DiskInvalid, match="in use"):
            DiskTier.open(folder, SMALL)
    with pytest.raises(DiskInvalid, match="read while"):
        check_index(folder)


def test_a_path_that_is_no_utf_8_is_refused_and_not_taken_to_be_damaged(folder):
    odd = Path(os.fsdecode(bytes(folder) + b"\xe9"))
    folder.rename(odd)
    before = content(odd)
    with pytest.raises(DiskInvalid, match="UTF-8"):
        look(odd, repair=True)
    with pytest.raises(DiskInvalid, match="UTF-8"):
        DiskTier.open(odd, SMALL)
    assert content(odd) == before


# -------------------------------------------------------------------------------- command


def test_names_that_are_no_utf_8_are_told(folder):
    (folder / os.fsdecode(b"stray\xff")).write_bytes(b"")
    result = CliRunner().invoke(app, ["verify", str(folder), "--json"])
    assert json.loads(result.stdout)["strange_files"] == ["stray\\xff"]


def test_a_path_too_long_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["verify", str(tmp_path / ("a" * 300))])
    assert isinstance(result.exception, DiskInvalid)
    check_index(tmp_path / ("a" * 300))


def test_the_command(folder):
    runner = CliRunner()
    result = runner.invoke(app, ["verify", str(folder)])
    assert result.exit_code == 0
    assert f"{COUNT} blocks" in result.stdout
    # Without a terminal there is no bar, and nothing in the place of one.
    assert result.stderr == ""
    change_bytes(folder, stored(9), SLOT, lambda value: b"?" + value[1:])
    result = runner.invoke(app, ["verify", str(folder)])
    assert result.exit_code == 1
    name = block_name(stored(9)).hex()
    # The key alone, by its first digits, as elsewhere for people.
    assert f"bytes {name[16:28]}…: wrong checksum" in result.stdout
    assert name not in result.stdout
    assert "`--repair` drops it" in result.stdout
    result = runner.invoke(app, ["verify", str(folder), "--json", "--repair"])
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["damages"] == {"bytes": 1}
    assert told["repaired"]
    assert told["listed"][0]["what"] == name
    assert runner.invoke(app, ["verify", str(folder)]).exit_code == 0
    (folder / "data.mdb").unlink()
    (folder / "kvstore.lock").unlink()
    refused = runner.invoke(app, ["verify", str(folder)]).exception
    assert isinstance(refused, DiskInvalid)
    # This command has a PATH, and no --disk.
    assert str(refused).startswith(f"PATH = {folder}: not kvstore's")
