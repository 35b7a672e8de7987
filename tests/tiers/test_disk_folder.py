"""The folder of the disk tier: private, whose it is, what else may stand there, what a closed one leaves."""

import gc
import os
import stat
import threading
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
from msgspec.structs import replace

from kvstore.core.errors import CheckFailed, ConfigInvalid, DiskInvalid
from kvstore.core.types import BlockKey
from kvstore.tiers import disk_folder
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.disk_table import BlockTable
from kvstore.tiers.disk_verify import verify
from tests.tiers.helpers import (
    BLOCK,
    CAP,
    chain,
    change_raw,
    frames,
    open_tier,
    read,
    reopen,
    stored,
    write,
)


def test_folder_and_files_are_private(tmp_path):
    folder = tmp_path / "made" / "here"
    with closing(open_tier(folder)) as tier:
        write(tier, chain(1))
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for file in folder.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


def test_a_folder_open_to_others_is_closed(tmp_path):
    tmp_path.chmod(0o755)
    with closing(DiskTier.open(tmp_path, CAP)):
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DiskInvalid, match=r"thesis\.txt") as refusal:
        DiskTier.open(tmp_path, CAP)
    assert str(tmp_path) in str(refusal.value)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def look(folder: Path) -> list[tuple[str, int, int, bytes]]:
    return [
        (
            path.name,
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (folder, *sorted(folder.iterdir()))
    ]


def make_foreign(folder: Path) -> None:
    with lmdb.open(str(folder)) as env, env.begin(write=True) as txn:
        txn.put(b"theirs", b"1")
    # Theirs to make, as in a copy of the data alone.
    (folder / "lock.mdb").unlink()


def make_cut_off(folder: Path) -> None:
    make_foreign(folder)
    os.truncate(folder / "data.mdb", 8192)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (make_foreign, "another program"),
        (make_cut_off, "cut off"),
        (lambda folder: (folder / "data.mdb").write_bytes(b"x" * 8192), "not kvstore's"),
        (lambda folder: (folder / "data.mdb").write_bytes(b""), "not kvstore's"),
    ],
)
def test_data_of_another_program_is_refused_and_left_as_it_was(tmp_path, make, found):
    tmp_path.chmod(0o755)
    make(tmp_path)
    before = look(tmp_path)
    with pytest.raises(DiskInvalid, match=found) as refusal:
        DiskTier.open(tmp_path, CAP)
    assert refusal.value.field == "--disk"
    with pytest.raises(DiskInvalid, match=found):
        DiskTier.open(tmp_path, CAP, wipe_incompatible=True)
    assert look(tmp_path) == before


@pytest.mark.parametrize("is_there", [True, False], ids=["to a file", "to nowhere"])
def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path, is_there):
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    open_tier(folder).close()
    (folder / "kvstore.lock").unlink()
    (folder / "kvstore.lock").symlink_to(victim)
    if is_there:
        victim.write_text("somebody else's")
    for opens in (lambda: open_tier(folder), lambda: verify(folder, repair=True, progress=print)):
        with pytest.raises(DiskInvalid, match=r"kvstore\.lock is a symbolic link"):
            opens()
    assert victim.exists() is is_there
    assert not is_there or victim.read_text() == "somebody else's"


def test_data_without_the_claim_file_is_known_as_ours(disk):
    write(disk, chain(1))
    disk.close()
    (disk.folder / "kvstore.lock").unlink()
    with closing(reopen(disk)) as again:
        assert read(again, stored(0)) is not None


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        (b"format", (1).to_bytes(4), "format 1, where this build reads and writes format 3"),
        (b"format", (4).to_bytes(4), "format 4"),
        (b"magic", b"x", "another program"),
    ],
)
def test_another_version_is_refused(disk, name, value, found):
    disk.close()
    change_raw(disk.folder, "meta", name, lambda _: value)
    with pytest.raises(DiskInvalid, match=found) as refusal:
        DiskTier.open(disk.folder, CAP)
    assert refusal.value.remedy


def test_a_file_that_is_no_environment_is_refused(tmp_path):
    (tmp_path / "data.mdb").write_bytes(b"x" * 8192)
    with pytest.raises(DiskInvalid, match=str(tmp_path)):
        DiskTier.open(tmp_path, CAP)
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskInvalid, match="a file, not a folder"):
        DiskTier.open(tmp_path / "file", CAP)


def test_a_second_open_is_refused_through_any_path(disk, tmp_path_factory):
    link = tmp_path_factory.mktemp("links") / "link"
    link.symlink_to(disk.folder)
    for path in (disk.folder, link):
        with pytest.raises(DiskInvalid, match=f"pid {os.getpid()}"):
            DiskTier.open(path, CAP)
    write(disk, chain(1))
    assert read(disk, stored(0)) is not None


def test_no_descriptor_is_left(tmp_path):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with closing(open_tier(tmp_path)) as tier:
        write(tier, chain(2))
        with pytest.raises(DiskInvalid):
            DiskTier.open(tmp_path, CAP)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "strange").write_text("")
    with pytest.raises(DiskInvalid):
        DiskTier.open(tmp_path / "sub", CAP)
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_descriptor_or_thread_is_left_where_sessions_cannot_be_read(disk, monkeypatch):
    def fails(self):
        raise lmdb.CorruptedError("no")

    write(disk, chain(2))
    disk.close()
    monkeypatch.setattr(BlockTable, "read_sessions", fails)
    gc.collect()
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    with pytest.raises(DiskInvalid, match="damaged"):
        DiskTier.open(disk.folder, CAP)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_case_5_20_a_remote_file_system_is_warned_of(tmp_path, monkeypatch, caplog):
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 {os.major(device)}:{os.minor(device)} / / rw shared:1 - nfs4 server:/x rw\n")
    monkeypatch.setattr(disk_folder, "MOUNTS", mounts)
    with closing(DiskTier.open(tmp_path / "disk", CAP)):
        assert "nfs4" in caplog.text


def test_a_cap_too_small_is_refused(tmp_path):
    with pytest.raises(ConfigInvalid, match="disk cap"):
        DiskTier.open(tmp_path, 1000)


def test_keys_of_wrong_length_are_a_bug(disk):
    with pytest.raises(CheckFailed):
        disk.read([replace(stored(1), key=BlockKey(b"short"))], [frames()])


def test_without_a_layout_nothing_is_written_or_read(tmp_path):
    with closing(DiskTier.open(tmp_path, CAP)) as tier:
        for call in (lambda: write(tier, chain(1)), lambda: read(tier, stored(0)), lambda: tier.found(BLOCK)):
            with pytest.raises(CheckFailed, match="no layout"):
                call()
