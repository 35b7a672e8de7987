"""Who may take a socket's place, and who is refused."""

import os
import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from kvstore.core.errors import ConfigInvalid
from kvstore.server.sockets import (
    claimed,
    file_identity,
    parse_address,
    private_files,
    remove,
    tether_path,
)


def bind(path: Path) -> "closing[socket.socket]":
    listener = socket.socket(socket.AF_UNIX)
    with private_files():
        listener.bind(str(path))
    listener.listen()
    return closing(listener)


@pytest.mark.parametrize(
    "address",
    ["/run/k.sock", "unix:/run/k.sock", "unix:///run/k.sock", "//run/k.sock", "unix:////run/k.sock"],
)
def test_addresses(address: str) -> None:
    assert parse_address(address) == Path("/run/k.sock")


def test_a_relative_path_is_of_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_address("unix:k.sock") == tmp_path / "k.sock"


def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "k.sock"
    with claimed(path), bind(path):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["k.sock", "k.sock.fds"])
def test_a_dead_socket_is_removed(tmp_path: Path, name: str) -> None:
    with bind(tmp_path / name):
        pass
    with claimed(tmp_path / "k.sock"):
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["k.sock", "k.sock.fds"])
def test_a_living_one_is_not(tmp_path: Path, name: str) -> None:
    with bind(tmp_path / name):
        with pytest.raises(ConfigInvalid, match="already"), claimed(tmp_path / "k.sock"):
            pass
        assert (tmp_path / name).exists()


def test_a_file_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "k.sock").write_text("precious")
    with pytest.raises(ConfigInvalid, match="no socket"), claimed(tmp_path / "k.sock"):
        pass
    assert (tmp_path / "k.sock").read_text() == "precious"


def test_a_folder_that_all_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigInvalid, match="all may write"), claimed(tmp_path / "k.sock"):
        pass
    tmp_path.chmod(0o1777)
    with claimed(tmp_path / "k.sock"):
        pass


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 12_345, -1)
    else:
        monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ConfigInvalid, match="belongs to user"), claimed(tmp_path / "k.sock"):
        pass


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigInvalid, match="can't make the folder"), claimed(tmp_path / "file" / "k.sock"):
        pass


def test_only_our_own_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    with bind(path):
        mine = file_identity(path)
        # Bound under another name first, so that the two can't share an inode number.
        with bind(tether_path(path)):
            path.unlink()
            tether_path(path).rename(path)
            remove(path, mine)
            assert path.exists()
            remove(path, file_identity(path))
            assert not path.exists()
    remove(path, mine)
