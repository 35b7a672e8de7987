"""The processes of the demo, and the service among them. Whatever starts here is ended here.

Each stands in a session of its own, so that Ctrl-C reaches the demo alone, which then ends them in order; and
each writes its log to a file, whose end is shown when it dies unasked.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NoReturn

from kvstore.client import Client, ClientError
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["END_SECONDS", "Child", "DemoError", "DemoRefused", "Service"]

READY_SECONDS = 60.0
# It takes some hundred KiB.
JOURNAL_BYTES = "64MiB"
# A service that is stopped may take ten seconds to let its transfers end.
END_SECONDS = 15.0
LOOK_SECONDS = 0.02
LOG_LINES = 15
# What torch reads when it starts. Threads that spin while they wait for each other are a tenth faster on idle
# cores, and twenty times slower on cores that others use too: a forward pass then lasts for seconds.
ENVIRONMENT = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}


class DemoError(Exception):
    """The demo could not be brought to its end; the message is for the one who watches."""


class DemoRefused(DemoError):
    """It was asked for what can't be had, and has not begun."""


class Child:
    def __init__(self, name: str, arguments: Sequence[str], folder: Path, *, has_pipes: bool = False) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        pipe = subprocess.PIPE if has_pipes else subprocess.DEVNULL
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=pipe,
                stdout=pipe,
                stderr=log,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,
            )

    @property
    def stdin(self) -> IO[bytes]:
        return _open(self.process.stdin)

    @property
    def stdout(self) -> IO[bytes]:
        return _open(self.process.stdout)

    def check_alive(self) -> None:
        status = self.process.poll()
        if status is not None:
            self.fail(f"it has ended by itself, with status {status}")

    def fail(self, message: str) -> NoReturn:
        """Ends the demo with this child's last words."""
        raise DemoError(f"{self.name}: {message}\n{self._log_tail()}")

    def end(self, signal_number: int = signal.SIGTERM) -> None:
        """Asks it to end, and sees to it."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join(f"  {self.name}| {line}" for line in lines) or f"  ({self._log} is empty)"


class Service(Child):
    """`kvstore serve`, with its socket and its disk tier in `folder`; its GPU tier on that GPU, if on any.
    `journal`: where all that it sees and does is recorded, so that it can be asked why when it is gone."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        gpu_bytes: int,
        cpu_bytes: int,
        disk_bytes: int,
        gpu_device: str = "",
        journal: Path | None = None,
    ) -> None:
        socket = folder / "kvstore.sock"
        self.address = f"unix:{socket}"
        sizes = {"--gpu": gpu_bytes, "--cpu": cpu_bytes, "--disk-bytes": disk_bytes}
        flags = [word for flag, size in sizes.items() for word in (flag, str(size))]
        places = ["--socket", str(socket), "--disk", str(folder / "disk")]
        if journal is not None:
            places += ["--journal", str(journal), "--journal-bytes", JOURNAL_BYTES]
        places += ["--gpu-device", gpu_device] if gpu_device else []
        super().__init__(name, ["kvstore", "serve", *places, *flags], folder)

    def until_answered(self) -> None:
        self._until(lambda usage: True)

    def rest(self) -> None:
        """Waits until nothing runs and nothing is being moved."""
        self._until(_is_at_rest)

    def _until(self, is_so: Callable[[pb.Usage], bool]) -> None:
        problem = "it does not come to rest"
        deadline = time.monotonic() + READY_SECONDS
        with Client(self.address) as client:
            while True:
                self.check_alive()
                try:
                    if is_so(client.operator.usage()):
                        return
                except ClientError as error:
                    problem = f"it does not answer: {error}"
                if time.monotonic() > deadline:
                    self.fail(problem)
                time.sleep(LOOK_SECONDS)


def _is_at_rest(usage: pb.Usage) -> bool:
    moving = any(tier.frames_pinned for tier in usage.tiers)
    return not moving and not any(engine.sequences for engine in usage.engines)


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("this child was started without pipes")
    return pipe
