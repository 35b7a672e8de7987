"""`--own-service`: a kvstore service started with the server and ended with it.

It stands in a session of its own, so that Ctrl-C reaches the server alone, which ends it when the answers
under way have ended. Its log is in its folder.
"""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvstore.client import Client, ClientError

__all__ = ["ServiceFailed", "own_service"]

READY_SECONDS = 60.0
LOOK_SECONDS = 0.05
# A service that is stopped may take ten seconds to let its transfers end.
END_SECONDS = 15.0
LOG_LINES = 15


class ServiceFailed(Exception):
    """It does not run; the message has its last words."""


@contextmanager
def own_service(folder: Path | None, flags: Sequence[str]) -> Iterator[str]:
    """The service's address. `folder` None: one that goes with it. `flags`: as of `kvstore serve`."""
    with _made(folder) as place:
        socket, log = place / "kvstore.sock", place / "service.log"
        command = [sys.executable, "-m", "kvstore", "serve", "--socket", str(socket)]
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*command, "--disk", str(place / "disk"), *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            _until_ready(process, f"unix:{socket}", log)
            yield f"unix:{socket}"
        finally:
            _end(process)


@contextmanager
def _made(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield folder
        return
    # Short, because the path of a socket may not be long.
    made = Path(tempfile.mkdtemp(prefix="kvserve-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _until_ready(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    with Client(address) as client:
        while True:
            if process.poll() is not None:
                raise ServiceFailed(f"the kvstore service has not started:\n{_tail(log)}")
            with contextlib.suppress(ClientError):
                client.operator.usage()
                return
            if time.monotonic() > deadline:
                raise ServiceFailed(f"the kvstore service does not answer:\n{_tail(log)}")
            time.sleep(LOOK_SECONDS)


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return "\n".join(f"  {line}" for line in lines) or f"  ({log} is empty)"
