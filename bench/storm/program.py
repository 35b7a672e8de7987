"""The server as operators run it, `kvstore-engine serve --own-service`, and what shows of it outside."""

import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from bench.serving_server import read_figures, server_process
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
    def __init__(self, process: "subprocess.Popen[str]", url: str, log: Path, service: Path) -> None:
        """`service`: the folder of the kvstore service."""
        self._process, self.url = process, url
        self._address = f"unix:{service / 'kvstore.sock'}"
        self._logs = {log: 0, service / "service.log": 0}

    def usage(self) -> pb.Usage:
        """Of the service, which may just be coming back."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with Client(self._address) as client:
                    return client.operator.usage()
            except ClientError:
                if time.monotonic() > end:
                    raise

    def answers_under_way(self) -> float:
        return read_figures(httpx.get(self.url + "/metrics").text)["answers_under_way"]

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
        log, service = Path(name) / "server.log", Path(name) / "kv"
        sizes = [word for flag, count in FRAMES.items() for word in (flag, str(count * FRAME_BYTES))]
        flags = ["--model", model, "--port", "0", "--threads", "1", "--folder", str(service), *sizes]
        limits = ["--body-bytes", str(BODY_BYTES), "--answers-at-once", "64"]
        with server_process(["--own-service", *flags, *limits], log) as (process, url):
            yield Program(process, url, log, service)
