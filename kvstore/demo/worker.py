"""An engine, or the plain run, as a child: requests go out as lines, what becomes of them comes in as lines.

What the lines say stands in engine/worker.py.
"""

import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvstore.demo.children import END_SECONDS, Child

__all__ = ["Line", "Worker"]

# The longest silence: a model that loads, or a prompt on a machine that has other things to do.
SILENCE_SECONDS = 120.0
LOOK_SECONDS = 0.5

# What a line says, as JSON has it.
Line = dict[str, Any]


class Worker(Child):
    """`address` empty: the plain run."""

    def __init__(
        self, name: str, folder: Path, *, model: str, device: str = "cpu", address: str = ""
    ) -> None:
        place = ["--address", address] if address else ["--plain"]
        threads = ["--threads", "1" if model == "tiny" else "2"]
        words = ["engine.worker", "--model", model, "--device", device, *threads, *place]
        super().__init__(name, words, folder, has_pipes=True)
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    def send(self, line: Mapping[str, Any]) -> None:
        try:
            self.stdin.write(json.dumps(line).encode() + b"\n")
            self.stdin.flush()
        except BrokenPipeError:
            self.process.wait()
            self.check_alive()

    def receive(self, needs: Child | None = None) -> Line:
        """The next line. A worker that has ended, or says nothing any more, is an error.

        So is the end of the child that it `needs`, about which it could say nothing for long.
        """
        deadline = time.monotonic() + SILENCE_SECONDS
        while (line := self._next()) == {}:
            if needs is not None:
                needs.check_alive()
            if time.monotonic() > deadline:
                self.fail(f"it has said nothing for {SILENCE_SECONDS:.0f} s")
        if line is None:
            self.process.wait()
            self.check_alive()
            self.fail("it has closed its output")
        if line["event"] == "error":
            self.fail(line["reason"])
        return line

    def _next(self) -> Line | None:
        """Empty: nothing yet. None: nothing more."""
        try:
            return self._lines.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            return {}

    def kill(self) -> list[Line]:
        """SIGKILL; returns what it had said before and nobody has received."""
        self.end(signal.SIGKILL)
        return self._left()

    def finish(self) -> list[Line]:
        """Tells it that no more comes, lets it end by itself, and returns what it had still to say."""
        self.stdin.close()
        try:
            status = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.fail("it does not end at the end of its input")
        if status:
            self.check_alive()
        self.end()
        return self._left()

    def end(self, signal_number: int = signal.SIGTERM) -> None:
        super().end(signal_number)
        # Now the reader meets the end of the file.
        self._reader.join()
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.stdout.close()

    def _left(self) -> list[Line]:
        lines: list[Line] = []
        with suppress(queue.Empty):
            while (line := self._lines.get_nowait()) is not None:
                lines.append(line)
        return lines

    def _read(self) -> None:
        for line in self.stdout:
            # The last line of a worker that was killed may be cut short.
            if line.endswith(b"\n"):
                self._lines.put(json.loads(line))
        self._lines.put(None)
