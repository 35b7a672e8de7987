"""`--own-service`: a kvstore service started with the server and ended with it.

It stands in a session of its own, so that Ctrl-C reaches the server alone, which ends it when the answers
under way have ended. A server that is killed takes it along (`with_parent.py`). Its log is in its folder.
When it ends by itself it is started again: the server waits. One that does not come up any more is given up.
Tests: tests/engine/server/test_own_service.py, test_serving.py.
"""

import logging
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from engine.server.flags import FlagRefused, reason
from engine.server.folder import SOCKET_NAME, find_listener
from kvstore.client import Client, ClientError

__all__ = ["OwnService", "ServiceFailed", "ServiceRefused", "own_service"]

READY_SECONDS = 60.0
LOOK_SECONDS = 0.05
# How often it is looked after; also what a service that ends at once is started again after.
KEEP_SECONDS = 1.0
# How often in a row it may end before it has listened.
FAILED_STARTS_MAX = 5
# A service that is stopped may take ten seconds to let its transfers end.
END_SECONDS = 15.0
LOG_LINES, LOG_BYTES = 15, 1 << 16
# With which `kvstore serve` ends where a flag is wrong.
EXIT_REFUSED = 2

log = logging.getLogger(__name__)


class ServiceFailed(Exception):
    """It does not run; the message has its last words."""


class ServiceRefused(ServiceFailed):
    """It was asked for what can't be had."""


@contextmanager
def own_service(
    folder: Path | None, flags: Sequence[str], *, has_disk: bool = True
) -> Iterator["OwnService"]:
    """Runs within. `folder` None: one that goes with it; a disk tier is in there. `flags`: as of `kvstore
    serve`. Raises ServiceFailed, at the end too where it was given up meanwhile."""
    with _made(folder) as place:
        disk = ("--disk", str(place / "disk")) if has_disk else ()
        service = OwnService(place, [*disk, *flags])
        try:
            service.until_ready()
            yield service
        finally:
            service.end()
        if service.failure:
            raise ServiceFailed(service.failure)


class OwnService:
    """The process, and a thread that sees to it that there is one."""

    def __init__(self, folder: Path, flags: Sequence[str]) -> None:
        self._socket = folder / SOCKET_NAME
        self.address = f"unix:{self._socket}"
        # Why it was given up; empty while it was not.
        self.failure = ""
        self._tell_failure: Callable[[], None] = lambda: None
        self._log = folder / "service.log"
        # Where in the log the words of this process begin: others of the folder came before it.
        self._log_begin = 0
        serve = ["kvstore", "serve", "--socket", str(self._socket), *flags]
        self._command = [sys.executable, "-m", "engine.server.with_parent", *serve]
        self._is_over = threading.Event()
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep, name="own-service")

    def until_ready(self) -> None:
        """Waits until it answers; from then on it is kept."""
        deadline = time.monotonic() + READY_SECONDS
        with Client(self.address) as client:
            while not (self._listens() and _answers(client)):
                if (status := self._process.poll()) is not None:
                    failed = ServiceRefused if status == EXIT_REFUSED else ServiceFailed
                    raise failed(f"the kvstore service has not started:\n{self._last_words()}")
                if time.monotonic() > deadline:
                    raise ServiceFailed(f"the kvstore service does not answer:\n{self._last_words()}")
                time.sleep(LOOK_SECONDS)
        self._keeper.start()

    def on_failure(self, tell: Callable[[], None]) -> None:
        """`tell` is called when it is given up, in a thread of its own; twice, it may be."""
        self._tell_failure = tell
        if self.failure:
            tell()

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
        self._let_go()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._open_log() as output:
            self._log_begin = output.tell()
            return subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
            )

    def _let_go(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _open_log(self) -> IO[bytes]:
        try:
            return self._log.open("ab")
        except OSError as error:
            why = f"{self._log.name} in it can't be written: {reason(error)}"
            raise FlagRefused("--folder", self._log.parent, why, "another folder, or remove it") from error

    def _listens(self) -> bool:
        """It, and no other that listens in its place."""
        return find_listener(self._socket) == self._process.pid

    def _keep(self) -> None:
        failed_count = 0
        while not self._is_over.wait(KEEP_SECONDS):
            status = self._process.poll()
            if status is None:
                failed_count = 0 if failed_count and self._listens() else failed_count
                continue
            failed_count += 1
            if failed_count > FAILED_STARTS_MAX:
                why = f"has ended with status {status}, after {FAILED_STARTS_MAX} starts in vain"
                return self._give_up(f"the kvstore service {why}:\n{self._last_words()}")
            # Who was killed has said nothing of it.
            words = f":\n{self._last_words()}" if status >= 0 else ""
            log.warning("the kvstore service has ended with status %d and is started again%s", status, words)
            self._let_go()
            try:
                self._process = self._start()
            except (FlagRefused, OSError) as error:
                return self._give_up(f"the kvstore service can't be started again: {error}")

    def _give_up(self, why: str) -> None:
        self.failure = why
        self._tell_failure()

    def _last_words(self) -> str:
        with self._log.open("rb") as words:
            words.seek(max(self._log_begin, self._log.stat().st_size - LOG_BYTES))
            lines = words.read().decode(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join(f"  {line}" for line in lines) or f"  (it has written nothing to {self._log})"


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
