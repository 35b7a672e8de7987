"""`--own-service`: a kvstore service started with the server and ended with it.

It stands in a session of its own, so that Ctrl-C reaches the server alone, which ends it when the answers
under way have ended. Its log is in its folder. When it ends by itself it is started again: the server waits.
Tests: tests/engine/server/test_serving.py.
"""

import logging
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from engine.server.flags import FlagRefused, reason
from engine.server.folder import SOCKET_NAME
from kvstore.client import Client, ClientError

__all__ = ["ServiceFailed", "ServiceRefused", "own_service"]

READY_SECONDS = 60.0
LOOK_SECONDS = 0.05
# How often it is looked after; also what a service that ends at once is started again after.
KEEP_SECONDS = 1.0
# A service that is stopped may take ten seconds to let its transfers end.
END_SECONDS = 15.0
LOG_LINES = 15
# With which `kvstore serve` ends where a flag is wrong.
EXIT_REFUSED = 2

log = logging.getLogger(__name__)


class ServiceFailed(Exception):
    """It does not run; the message has its last words."""


class ServiceRefused(ServiceFailed):
    """It was asked for what can't be had."""


@contextmanager
def own_service(folder: Path | None, flags: Sequence[str], *, has_disk: bool = True) -> Iterator[str]:
    """The service's address. `folder` None: one that goes with it; a disk tier is in there. `flags`: as of
    `kvstore serve`."""
    with _made(folder) as place:
        disk = ("--disk", str(place / "disk")) if has_disk else ()
        service = _Service(place, [*disk, *flags])
        try:
            service.until_ready()
            yield service.address
        finally:
            service.end()


class _Service:
    """The process, and a thread that sees to it that there is one."""

    def __init__(self, folder: Path, flags: Sequence[str]) -> None:
        socket = folder / SOCKET_NAME
        self.address = f"unix:{socket}"
        self._log = folder / "service.log"
        self._command = [sys.executable, "-m", "kvstore", "serve", "--socket", str(socket), *flags]
        self._is_over = threading.Event()
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep, name="own-service")

    def until_ready(self) -> None:
        """Waits until it answers; from then on it is kept."""
        deadline = time.monotonic() + READY_SECONDS
        with Client(self.address) as client:
            while not _answers(client):
                if (status := self._process.poll()) is not None:
                    failed = ServiceRefused if status == EXIT_REFUSED else ServiceFailed
                    raise failed(f"the kvstore service has not started:\n{_tail(self._log)}")
                if time.monotonic() > deadline:
                    raise ServiceFailed(f"the kvstore service does not answer:\n{_tail(self._log)}")
                time.sleep(LOOK_SECONDS)
        self._keeper.start()

    def end(self) -> None:
        self._is_over.set()
        if self._keeper.is_alive():
            self._keeper.join()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._open_log() as output:
            return subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def _open_log(self) -> IO[bytes]:
        try:
            return self._log.open("ab")
        except OSError as error:
            why = f"{self._log.name} in it can't be written: {reason(error)}"
            raise FlagRefused("--folder", self._log.parent, why, "another folder, or remove it") from error

    def _keep(self) -> None:
        while not self._is_over.wait(KEEP_SECONDS):
            status = self._process.poll()
            if status is not None:
                log.warning("the kvstore service has ended with status %d and is started again", status)
                self._process = self._start()


@contextmanager
def _made(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield folder
        return
    # Short, because the path of a socket may not be long.
    with tempfile.TemporaryDirectory(prefix="kvserve-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def _answers(client: Client) -> bool:
    try:
        client.operator.usage()
    except ClientError:
        return False
    return True


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return "\n".join(f"  {line}" for line in lines) or f"  ({log} is empty)"
