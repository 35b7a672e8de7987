"""The seam to the file system: whole moves or an error, on the disk's folder and on a tmpfs."""

import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore.tiers import files as files_module
from kvstore.tiers.files import ALIGNMENT, DirectFiles
from tests.tiers.helpers import files_at_most

SIZE = 64 * ALIGNMENT


def aligned(size: int, fill: int | None = None) -> np.ndarray:
    array = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    array[:] = np.random.default_rng(size).integers(0, 256, size, np.uint8) if fill is None else fill
    return array


def parts_of(array: np.ndarray, *sizes: int) -> list[memoryview]:
    view, parts = array.data, []
    for size in sizes:
        parts.append(view[:size])
        view = view[size:]
    return parts


@pytest.fixture(params=["disk", "memory"])
def folder(request, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
    else:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
            yield Path(path)


@pytest.fixture
def file(folder: Path) -> Iterator[int]:
    files = DirectFiles()
    fd = files.create(folder / "segment", SIZE)
    yield fd
    files.close(fd)


def read(fd: int, size: int, offset: int = 0) -> bytes:
    array = aligned(size, 0)
    DirectFiles().read(fd, [array.data], offset)
    return array.tobytes()


def test_parts_stand_one_behind_the_other(file):
    array = aligned(6 * ALIGNMENT)
    DirectFiles().write(file, parts_of(array, ALIGNMENT, 3 * ALIGNMENT, 2 * ALIGNMENT), 8 * ALIGNMENT)
    DirectFiles().sync(file)
    assert read(file, SIZE) == bytes(8 * ALIGNMENT) + array.tobytes() + bytes(50 * ALIGNMENT)
    back = aligned(6 * ALIGNMENT, 0)
    DirectFiles().read(file, parts_of(back, 5 * ALIGNMENT, ALIGNMENT), 8 * ALIGNMENT)
    assert back.tobytes() == array.tobytes()


def test_more_parts_than_one_call_takes(folder):
    count = files_module.PARTS_MAX + 5
    fd = DirectFiles().create(folder / "many", count * ALIGNMENT)
    array, back = aligned(count * ALIGNMENT), aligned(count * ALIGNMENT, 0)
    DirectFiles().write(fd, parts_of(array, *[ALIGNMENT] * count), 0)
    DirectFiles().read(fd, parts_of(back, *[ALIGNMENT] * count), 0)
    assert back.tobytes() == array.tobytes()
    DirectFiles().close(fd)


def test_a_move_in_two_steps_is_whole(file, monkeypatch):
    """As the kernel does beyond 2 GiB."""
    array, back = aligned(6 * ALIGNMENT), aligned(6 * ALIGNMENT, 0)
    sizes = (ALIGNMENT, 3 * ALIGNMENT, 2 * ALIGNMENT)
    pwritev, preadv = os.pwritev, os.preadv
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: pwritev(fd, [parts[0][:ALIGNMENT]], at))
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: preadv(fd, [parts[0][:ALIGNMENT]], at))
    DirectFiles().write(file, parts_of(array, *sizes), 0)
    DirectFiles().read(file, parts_of(back, *sizes), 0)
    assert back.tobytes() == array.tobytes()


def test_a_file_has_all_its_blocks_at_once_and_is_private(folder):
    fd = DirectFiles().create(folder / "segment", 1 << 20)
    status = os.fstat(fd)
    assert status.st_size == 1 << 20
    assert status.st_blocks * 512 >= 1 << 20
    assert status.st_mode & 0o077 == 0
    DirectFiles().close(fd)


@pytest.mark.parametrize("size", [ALIGNMENT, 2 * SIZE, SIZE + 5])
def test_create_makes_one_that_is_there_as_long_as_told(folder, size):
    (folder / "segment").write_bytes(b"x" * size)
    fd = DirectFiles().create(folder / "segment", SIZE)
    assert read(fd, SIZE) == b"x" * min(size, SIZE) + bytes(max(0, SIZE - size))
    assert os.fstat(fd).st_size == SIZE
    DirectFiles().close(fd)


def test_nothing_is_left_of_a_file_for_which_there_is_no_room(folder):
    with files_at_most(SIZE // 2), pytest.raises(OSError, match="File too large"):
        DirectFiles().create(folder / "segment", SIZE)
    assert list(folder.iterdir()) == []
    (folder / "segment").write_bytes(b"x" * 100)
    with files_at_most(SIZE // 2), pytest.raises(OSError, match="File too large"):
        DirectFiles().create(folder / "segment", SIZE)
    assert (folder / "segment").exists(), "what was there may still be of use"


@pytest.mark.parametrize("kept", [0, ALIGNMENT, ALIGNMENT + 100])
def test_a_short_read_is_an_error(file, kept):
    os.truncate(f"/proc/self/fd/{file}", kept)
    with pytest.raises(OSError, match="cut off"):
        read(file, 2 * ALIGNMENT)


@pytest.mark.parametrize("done", [0, 100, ALIGNMENT + 1])
def test_a_short_write_is_an_error(file, monkeypatch, done):
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: done)
    with pytest.raises(OSError, match="cut off"):
        DirectFiles().write(file, [aligned(2 * ALIGNMENT).data], 0)


def test_a_file_system_without_direct_io_is_gone_through_the_page_cache(tmp_path, monkeypatch, caplog):
    open_ = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT")
        return open_(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    fd = DirectFiles().create(tmp_path / "segment", SIZE)
    DirectFiles().write(fd, [aligned(SIZE).data], 0)
    DirectFiles().sync(fd)
    assert read(fd, SIZE) == aligned(SIZE).tobytes()
    DirectFiles().close(fd)


def test_direct_io_that_is_refused_when_it_is_used_ends(tmp_path, monkeypatch, caplog):
    pwritev = os.pwritev

    def refuse(fd, parts, offset):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT")
        return pwritev(fd, parts, offset)

    def refuse_always(fd, parts, offset):
        raise OSError(errno.EINVAL, "no such luck")

    fd = DirectFiles().create(tmp_path / "segment", SIZE)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    monkeypatch.setattr(os, "pwritev", refuse)
    DirectFiles().write(fd, [aligned(SIZE).data], 0)
    assert "through the page cache" in caplog.text
    assert read(fd, SIZE) == aligned(SIZE).tobytes()
    monkeypatch.setattr(os, "pwritev", refuse_always)
    with pytest.raises(OSError, match="no such luck"):
        DirectFiles().write(fd, [aligned(SIZE).data], 0)
    DirectFiles().close(fd)


def test_removed_is_gone_and_a_missing_one_is_an_error(folder):
    DirectFiles().close(DirectFiles().create(folder / "segment", SIZE))
    DirectFiles().remove(folder / "segment")
    assert list(folder.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        DirectFiles().remove(folder / "segment")


def test_a_file_that_may_not_be_written_can_be_read(folder, monkeypatch):
    DirectFiles().close(DirectFiles().create(folder / "segment", SIZE))
    open_ = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "read-only")
        return open_(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    fd = DirectFiles().open(folder / "segment")
    assert read(fd, SIZE) == bytes(SIZE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        DirectFiles().write(fd, [aligned(SIZE).data], 0)
    DirectFiles().close(fd)
