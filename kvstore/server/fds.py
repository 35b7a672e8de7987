"""The tether server: hands the pools' file descriptors over, and sees when their holders are gone.

A process that maps connects to the socket beside the main one, sends the 32 bytes of a secret, gets
one byte (0: good) with the descriptors of its rank, and keeps the connection open: its tether. The
end of file comes only when the last holder, forked children included, is gone; so the server never
closes a good tether while the service runs. What each secret is for comes from Attach, what an
engine's tethers mean to its frames is the core's affair.
"""

import asyncio
import hmac
import logging
import os
import secrets
import select
import socket
import struct
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path

from kvstore.core.errors import KVStoreError
from kvstore.core.types import EngineId

__all__ = ["TetherServer"]

SECRET_BYTES = 32
GOOD, BAD = b"\0", b"\1"
# Who has connected has this long to send its secret, and so many may be at it at once.
SECRET_SECONDS = 5.0
UNPROVEN_MAX = 64
# How soon the end of a tether is seen whose holder had ended the sending half before.
HANG_UP_SECONDS = 0.25
# After want of descriptors, the one error of accept that waiting helps with.
ACCEPT_PAUSE_SECONDS = 0.1
# struct ucred: pid, uid, gid.
CREDENTIALS = struct.Struct("3i")

log = logging.getLogger(__name__)


class TetherServer:
    """`opened` is told before a descriptor leaves, and may refuse; `closed` when the last one ends."""

    def __init__(
        self, opened: Callable[[EngineId, int], object], closed: Callable[[EngineId], object]
    ) -> None:
        self._opened = opened
        self._closed = closed
        self._fds: Sequence[int | None] = ()
        # One-time secrets that are still out, and the engine and rank each is for.
        self._secrets: dict[bytes, tuple[EngineId, int]] = {}
        self._open: Counter[EngineId] = Counter()
        # Oldest first.
        self._unproven: dict[socket.socket, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None

    def start(self, path: Path) -> None:
        """Binds and listens; the caller sees to the mode of the file."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(os.fspath(path))
        self._listener.listen(128)
        self._spawn(self._accept(self._listener))

    def serve_pools(self, fds: Sequence[int | None]) -> None:
        """The descriptor of the GPU pool of each rank; they stay the pool's own. None: there is none to be
        sent, for the memory is opened by a handle; the tether is as good."""
        self._fds = fds

    def issue(self, engine: EngineId) -> list[bytes]:
        """One secret a rank. Those of an Attach before, whose answer got lost, are void."""
        self.revoke({engine})
        issued = [secrets.token_bytes(SECRET_BYTES) for _ in self._fds]
        self._secrets.update((secret, (engine, rank)) for rank, secret in enumerate(issued))
        return issued

    def revoke(self, engines: Collection[EngineId]) -> None:
        self._secrets = {secret: use for secret, use in self._secrets.items() if use[0] not in engines}

    @property
    def engines(self) -> set[EngineId]:
        """Those with secrets out."""
        return {engine for engine, _ in self._secrets.values()}

    async def close(self) -> None:
        """Ends all tethers: the engines see the service go."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_tell_failure)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("can't take a tether: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            self._admit(connection)
            # Its turn now: a secret that is there already is read before the next connection may push
            # this one out.
            await asyncio.sleep(0)

    def _admit(self, connection: socket.socket) -> None:
        """The oldest makes room: an engine sends its secret at once, so the silent are never in its way."""
        if len(self._unproven) >= UNPROVEN_MAX:
            log.warning("closed a tether: silent so far, and %d others are so too", UNPROVEN_MAX)
            # It still waits for its secret, so none is spent.
            self._unproven.pop(next(iter(self._unproven))).cancel()
        task = self._unproven[connection] = self._spawn(self._serve(connection))
        # Not within the task: one that is cancelled before its first turn never runs at all.
        task.add_done_callback(lambda _: connection.close())

    async def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            engine = await self._hand_over(connection)
        finally:
            self._unproven.pop(connection, None)
        if engine is not None:
            await self._hold(connection, engine)

    async def _hand_over(self, connection: socket.socket) -> EngineId | None:
        """None: nothing was handed over."""
        try:
            async with asyncio.timeout(SECRET_SECONDS):
                given = await _receive(connection, SECRET_BYTES)
        except (OSError, EOFError, TimeoutError):
            return None
        use = self._spend(given)
        pid = _peer_pid(connection)
        if use is None:
            log.warning("process %d sent a tether secret that is unknown or spent", pid)
        else:
            engine, rank = use
            try:
                self._opened(engine, pid)
            except KVStoreError as error:
                log.warning("process %d came too late for its tether: %s", pid, error)
            else:
                self._open[engine] += 1
                return self._send(connection, engine, rank)
        with suppress(OSError):
            connection.send(BAD)
        return None

    def _send(self, connection: socket.socket, engine: EngineId, rank: int) -> EngineId | None:
        """A byte and one descriptor always fit the buffer of a fresh connection, so this never waits."""
        fd = self._fds[rank]
        try:
            socket.send_fds(connection, [GOOD], [] if fd is None else [fd])
        except OSError:
            self._end(engine)
            return None
        return engine

    def _spend(self, given: bytes) -> tuple[EngineId, int] | None:
        # Compared one by one in constant time: a look-up's would tell how much of a guess was right.
        known = next((secret for secret in self._secrets if hmac.compare_digest(secret, given)), None)
        return self._secrets.pop(known) if known is not None else None

    async def _hold(self, connection: socket.socket, engine: EngineId) -> None:
        loop = asyncio.get_running_loop()
        try:
            # A tether is silent; what is said all the same is not worth ending it.
            while await loop.sock_recv(connection, 4096):
                pass
            await _hung_up(connection)
        except OSError:
            pass
        self._end(engine)

    def _end(self, engine: EngineId) -> None:
        self._open[engine] -= 1
        if not self._open[engine]:
            del self._open[engine]
            self._closed(engine)


async def _receive(connection: socket.socket, length: int) -> bytes:
    loop = asyncio.get_running_loop()
    received = b""
    while len(received) < length:
        part = await loop.sock_recv(connection, length - len(received))
        if not part:
            raise EOFError
        received += part
    return received


async def _hung_up(connection: socket.socket) -> None:
    """The end of file may be shutdown(SHUT_WR) of a holder that lives on and still maps. Only when the
    other end is closed is there POLLHUP, which poll tells unasked."""
    poll = select.poll()
    poll.register(connection, 0)
    # No event of asyncio's tells this alone: after the end of file a reader would be called without end.
    while not poll.poll(0):  # noqa: ASYNC110
        await asyncio.sleep(HANG_UP_SECONDS)


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a tether's task failed", exc_info=error)


def _peer_pid(connection: socket.socket) -> int:
    """As of the connect; 0 where the peer's process can't be seen from this namespace."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid: int = CREDENTIALS.unpack(raw)[0]
    return pid
