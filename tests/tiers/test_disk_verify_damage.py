"""`kvstore verify` on damage of every kind, drawn at random, and on what ends or hangs who looks at it."""

import errno
import os
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kvstore.core.errors import DiskInvalid
from kvstore.tiers import disk_dump, index_walk
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.disk_dump import check_index
from kvstore.tiers.disk_verify import verify
from kvstore.tiers.files import DirectFiles
from kvstore.tiers.index_check import PageFault
from tests.tiers.helpers import (
    open_tier,
)
from tests.tiers.verified import COUNT, SMALL, check_repaired, content, look, make_socket


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
