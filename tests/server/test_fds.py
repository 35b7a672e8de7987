"""Tethers: descriptors against one-time secrets, and the end of a process told by its connection's end."""

import asyncio
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest

from kvstore.core.errors import EngineExpired
from kvstore.core.types import EngineId
from kvstore.server import fds
from kvstore.server.fds import TetherServer

ENGINE = EngineId("one")
OTHER = EngineId("two")
DEADLINE_SECONDS = 60.0

HOLDER = """
import os, socket, sys
tether = socket.socket(socket.AF_UNIX)
tether.connect(sys.argv[1])
tether.sendall(bytes.fromhex(sys.argv[2]))
answer, fds, _, _ = socket.recv_fds(tether, 1, 1)
child = os.fork() if "fork" in sys.argv else 0
if not child:
    print(answer[0], os.getpid(), flush=True)
sys.stdin.read()
"""


class Recorder:
    """What the server told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, EngineId]] = []
        self.pids: list[int] = []
        self.refuse = False
        self._changed = asyncio.Event()

    def opened(self, engine: EngineId, pid: int) -> None:
        if self.refuse:
            raise EngineExpired("too late")
        self.told.append(("opened", engine))
        self.pids.append(pid)

    def closed(self, engine: EngineId) -> None:
        self.told.append(("closed", engine))
        self._changed.set()

    async def until_closed(self, engine: EngineId) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while ("closed", engine) not in self.told:
                await self._changed.wait()
                self._changed.clear()


@pytest.fixture
def pools() -> Iterator[list[int]]:
    """One memory file a rank, each with its number in it."""
    files = [os.memfd_create(f"rank-{rank}") for rank in range(2)]
    for rank, file in enumerate(files):
        os.write(file, f"rank {rank}".encode())
    yield files
    for file in files:
        os.close(file)


def run(
    tmp_path: Path,
    pools: list[int],
    scenario: Callable[[TetherServer, Recorder, Path], Coroutine[None, None, None]],
) -> None:
    async def body() -> None:
        recorder = Recorder()
        server = TetherServer(recorder.opened, recorder.closed)
        server.start(tmp_path / "t.sock")
        server.serve_pools(pools)
        try:
            async with asyncio.timeout(30):
                await scenario(server, recorder, tmp_path / "t.sock")
        finally:
            await server.close()

    asyncio.run(body())


def connect(path: Path) -> "closing[socket.socket]":
    tether = socket.socket(socket.AF_UNIX)
    tether.settimeout(DEADLINE_SECONDS)
    tether.connect(str(path))
    return closing(tether)


def _exchange(tether: socket.socket, secret: bytes) -> tuple[bytes, list[int]]:
    tether.sendall(secret)
    answer, files, _, _ = socket.recv_fds(tether, 16, 4)
    return answer, files


async def exchange(tether: socket.socket, secret: bytes) -> tuple[bytes, list[int]]:
    return await asyncio.to_thread(_exchange, tether, secret)


@asynccontextmanager
async def holder(path: Path, secret: bytes, *words: str) -> AsyncIterator[tuple[subprocess.Popen[str], int]]:
    """A process with a tether; and the pid of the one that holds it, a forked child perhaps."""
    command = [sys.executable, "-c", HOLDER, str(path), secret.hex(), *words]
    # Not asyncio's own: that waits for the child's pipes, which the fork keeps open.
    process = await asyncio.to_thread(start, command)
    with process:
        assert process.stdout is not None
        answer, pid = (await asyncio.to_thread(process.stdout.readline)).split()
        assert answer == "0"
        yield process, int(pid)
        process.kill()


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_secret_buys_the_descriptor_of_its_rank(tmp_path: Path, pools: list[int]) -> None:
    async def scenario(server: TetherServer, recorder: Recorder, path: Path) -> None:
        secrets = server.issue(ENGINE)
        assert [len(secret) for secret in secrets] == [32, 32]
        with connect(path) as second, connect(path) as first:
            for rank, tether in ((1, second), (0, first)):
                answer, [file] = await exchange(tether, secrets[rank])
                with mmap.mmap(file, 6) as mapped:
                    assert (answer, mapped[:]) == (b"\0", f"rank {rank}".encode())
                os.close(file)
            assert recorder.told == [("opened", ENGINE)] * 2
            assert recorder.pids == [os.getpid()] * 2
        await recorder.until_closed(ENGINE)
        assert recorder.told[-1] == ("closed", ENGINE)

    run(tmp_path, pools, scenario)


def test_the_end_is_told_with_the_last_tether_of_an_engine(tmp_path: Path, pools: list[int]) -> None:
    async def scenario(server: TetherServer, recorder: Recorder, path: Path) -> None:
        secrets, others = server.issue(ENGINE), server.issue(OTHER)
        with connect(path) as first, connect(path) as second, connect(path) as other:
            for tether, secret in ((first, secrets[0]), (second, secrets[1]), (other, others[0])):
                _, files = await exchange(tether, secret)
                os.close(files[0])
            first.close()
            other.close()
            await recorder.until_closed(OTHER)
            assert ("closed", ENGINE) not in recorder.told
            second.close()
            await recorder.until_closed(ENGINE)

    run(tmp_path, pools, scenario)


def test_a_secret_is_spent_by_its_first_use(tmp_path: Path, pools: list[int]) -> None:
    async def scenario(server: TetherServer, recorder: Recorder, path: Path) -> None:
        secret = server.issue(ENGINE)[0]
        with connect(path) as first, connect(path) as second:
            _, files = await exchange(first, secret)
            os.close(files[0])
            assert await exchange(second, secret) == (b"\1", [])
            assert await asyncio.to_thread(second.recv, 1) == b""
        assert recorder.told[:1] == [("opened", ENGINE)]

    run(tmp_path, pools, scenario)


def test_guesses_and_void_secrets_are_refused(tmp_path: Path, pools: list[int]) -> None:
    async def scenario(server: TetherServer, recorder: Recorder, path: Path) -> None:
        void = server.issue(ENGINE)[0]
        revoked = server.issue(OTHER)[0]
        server.issue(ENGINE)
        server.revoke({OTHER})
        assert server.engines == {ENGINE}
        for secret in (void, revoked, b"\0" * 32):
            with connect(path) as tether:
                assert await exchange(tether, secret) == (b"\1", [])
        assert recorder.told == []

    run(tmp_path, pools, scenario)


def test_an_engine_that_has_expired_gets_nothing(tmp_path: Path, pools: list[int]) -> None:
    async def scenario(server: TetherServer, recorder: Recorder, path: Path) -> None:
        recorder.refuse = True
        with connect(path) as tether:
            assert await exchange(tether, server.issue(ENGINE)[0]) == (b"\1", [])
        assert recorder.told == []

    run(tmp_path, pools, scenario)


def test_who_says_nothing_is_sent_away_and_does_not_bar_others(
    tmp_path: Path, pools: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fds, "SECRET_SECONDS", 0.2)
    monkeypatch.setattr(fds, "UNPROVEN_MAX", 2)

    async def scenario(server: TetherServer, recorder: Recorder, path: Path) -> None:
        with connect(path) as first, connect(path) as second, connect(path) as third:
            second.sendall(b"half a secret")
            for tether in (first, second, third):
                assert await asyncio.to_thread(tether.recv, 1) == b""
        with connect(path) as tether:
            answer, files = await exchange(tether, server.issue(ENGINE)[0])
            os.close(files[0])
            assert answer == b"\0"

    run(tmp_path, pools, scenario)


def test_the_silent_make_room_for_an_engine(
    tmp_path: Path, pools: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fds, "SECRET_SECONDS", 60.0)
    monkeypatch.setattr(fds, "UNPROVEN_MAX", 2)

    async def scenario(server: TetherServer, recorder: Recorder, path: Path) -> None:
        with connect(path) as first, connect(path) as second, connect(path) as engine:
            answer, files = await exchange(engine, server.issue(ENGINE)[0])
            os.close(files[0])
            assert answer == b"\0"
            # Only the oldest had to go, and there is room for one more again.
            assert await asyncio.to_thread(first.recv, 1) == b""
            with connect(path) as other:
                answer, files = await exchange(other, server.issue(OTHER)[0])
                os.close(files[0])
                assert answer == b"\0"
            second.setblocking(False)
            with pytest.raises(BlockingIOError):
                second.recv(1)

    run(tmp_path, pools, scenario)


def test_a_crowd_at_once_costs_no_secret_that_was_sent(
    tmp_path: Path, pools: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fds, "UNPROVEN_MAX", 2)

    async def scenario(server: TetherServer, recorder: Recorder, path: Path) -> None:
        with ExitStack() as crowd:
            # All of them wait in the backlog before the server has its first turn.
            engine = crowd.enter_context(connect(path))
            engine.sendall(server.issue(ENGINE)[0])
            for _ in range(20):
                crowd.enter_context(connect(path))
            answer, files, _, _ = await asyncio.to_thread(socket.recv_fds, engine, 16, 4)
            os.close(files[0])
            assert answer == b"\0"

    run(tmp_path, pools, scenario)


def test_a_holder_that_has_only_ended_its_sending_half_still_holds(tmp_path: Path, pools: list[int]) -> None:
    async def scenario(server: TetherServer, recorder: Recorder, path: Path) -> None:
        with connect(path) as tether:
            _, files = await exchange(tether, server.issue(ENGINE)[0])
            os.close(files[0])
            tether.shutdown(socket.SHUT_WR)
            await asyncio.sleep(3 * fds.HANG_UP_SECONDS)
            assert recorder.told == [("opened", ENGINE)]
            tether.close()
            async with asyncio.timeout(DEADLINE_SECONDS):
                await recorder.until_closed(ENGINE)

    run(tmp_path, pools, scenario)


def test_what_a_tether_says_later_does_not_end_it(tmp_path: Path, pools: list[int]) -> None:
    async def scenario(server: TetherServer, recorder: Recorder, path: Path) -> None:
        with connect(path) as tether, connect(path) as other:
            _, files = await exchange(tether, server.issue(ENGINE)[0])
            os.close(files[0])
            tether.sendall(b"x" * 10_000)
            _, files = await exchange(other, server.issue(OTHER)[0])
            os.close(files[0])
            other.close()
            await recorder.until_closed(OTHER)
            assert ("closed", ENGINE) not in recorder.told

    run(tmp_path, pools, scenario)


def test_a_killed_process_is_known_by_its_tether(tmp_path: Path, pools: list[int]) -> None:
    async def scenario(server: TetherServer, recorder: Recorder, path: Path) -> None:
        async with holder(path, server.issue(ENGINE)[0]) as (process, pid):
            assert recorder.pids == [pid]
            process.kill()
            await recorder.until_closed(ENGINE)
            assert recorder.told == [("opened", ENGINE), ("closed", ENGINE)]

    run(tmp_path, pools, scenario)


def test_a_forked_child_keeps_the_tether(tmp_path: Path, pools: list[int]) -> None:
    async def scenario(server: TetherServer, recorder: Recorder, path: Path) -> None:
        async with holder(path, server.issue(ENGINE)[0], "fork") as (process, child):
            process.kill()
            await asyncio.to_thread(process.wait)
            # The kernel has closed the parent's end by now; a sign of life from another tether shows
            # that the server has had its turn since.
            async with holder(path, server.issue(OTHER)[0]) as (other, _):
                other.kill()
                await recorder.until_closed(OTHER)
            assert ("closed", ENGINE) not in recorder.told
            os.kill(child, signal.SIGKILL)
            await recorder.until_closed(ENGINE)

    run(tmp_path, pools, scenario)
