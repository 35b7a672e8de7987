"""The server as operators run it, `kvstore-engine serve --own-service`, and what shows of it outside."""

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from kvstore.client import Client, ClientError
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["BODY_BYTES", "FRAMES", "Program", "started"]

# Of the tiny model, whose frames have so many bytes: little enough that most of what runs is swapped.
FRAME_BYTES = 8192
FRAMES = {"--gpu": 120, "--cpu": 120, "--disk-bytes": 800}
BODY_BYTES = 200_000
PATIENCE_SECONDS = 120.0
# Before its end, a service that is killed may say what it likes; these are said by who has it come back.
EXPECTED = re.compile(r"the kvstore service has ended with status -9 and is started again")
BAD = re.compile(r"WARNING|ERROR|CRITICAL|Traceback|Error:")


class Program:
    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process = process
        self._logs = {folder / "server.log": 0, folder / "kv" / "service.log": 0}
        self.url, self._socket = "", ""

    def until_ready(self) -> None:
        told = [self._process.stdout.readline() for _ in range(3)] if self._process.stdout else []
        if not told or not told[-1]:
            raise SystemExit(f"the server has not started: {self.new_lines()}")
        self.url = re.findall(r"http://\S+(?=/v1)", told[0])[0]
        self._socket = told[-1].split()[-1]

    def usage(self) -> pb.Usage:
        """Of the service, which may just be coming back."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with Client(self._socket) as client:
                    return client.operator.usage()
            except ClientError:
                if time.monotonic() > end:
                    raise

    def answers_under_way(self) -> float:
        lines = httpx.get(self.url + "/metrics").text.splitlines()
        return float(
            next(line for line in lines if line.startswith("kvstore_engine_answers_under_way ")).split()[1]
        )

    def kill_service(self) -> None:
        """Who started it starts it again."""
        for child in psutil.Process(self._process.pid).children():
            if "serve" in child.cmdline():
                child.kill()

    def sizes(self) -> str:
        """What a leak would show in."""
        process = psutil.Process(self._process.pid)
        memory = process.memory_info().rss >> 20
        return f"{memory} MiB, {process.num_fds()} descriptors, {process.num_threads()} threads"

    def new_lines(self) -> list[str]:
        """Of both logs, those that shouldn't be there."""
        found = []
        for path, begin in self._logs.items():
            text = path.read_text(errors="replace") if path.exists() else ""
            self._logs[path] = len(text)
            lines = text[begin:].splitlines()
            found += [
                f"{path.name}: {line}" for line in lines if BAD.search(line) and not EXPECTED.search(line)
            ]
        return found

    def end(self) -> int:
        """Its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE_SECONDS)


@contextmanager
def started(model: str) -> Iterator[Program]:
    with tempfile.TemporaryDirectory(prefix="kvstorm-") as name:
        folder = Path(name)
        sizes = [word for flag, count in FRAMES.items() for word in (flag, str(count * FRAME_BYTES))]
        flags = ["--model", model, "--port", "0", "--threads", "1", "--folder", str(folder / "kv"), *sizes]
        limits = ["--body-bytes", str(BODY_BYTES), "--answers-at-once", "64"]
        command = [sys.executable, "-m", "engine.server.command", "serve", "--own-service", *flags, *limits]
        with (folder / "server.log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        program = Program(process, folder)
        try:
            program.until_ready()
            yield program
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait()
