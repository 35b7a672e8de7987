"""`kvstore verify` on what only looks like the tier's files, is not ours or is in use: never touched."""

import fcntl
import os
import stat
from contextlib import closing
from pathlib import Path

import pytest

from kvstore.core.errors import DiskInvalid
from kvstore.tiers.disk import DiskTier, ReadOutcome
from kvstore.tiers.disk_verify import verify
from tests.tiers.helpers import (
    BLOCK,
    change_raw,
    frames,
    open_tier,
    stored,
    write,
)
from tests.tiers.verified import COUNT, SMALL, look, make_socket


def make_link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "nowhere")


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
