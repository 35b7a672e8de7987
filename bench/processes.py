"""The two servers that are compared, each in a process of its own, on Unix sockets in one folder."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

__all__ = ["Addresses", "servers"]

READY_SECONDS = 30.0
GPU_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    service: str
    echo: str


@contextmanager
def servers() -> Iterator[Addresses]:
    with tempfile.TemporaryDirectory(prefix="kvbench-") as folder:
        service, echo = Path(folder, "k.sock"), Path(folder, "echo.sock")
        commands = (
            ["-m", "kvstore", "serve", "--socket", str(service), "--gpu", str(GPU_BYTES), "--cpu", "0"],
            ["-m", "bench.echo", str(echo)],
        )
        started = [
            subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE) for command in commands
        ]
        try:
            addresses = Addresses(service=f"unix:{service}", echo=f"unix:{echo}")
            for process, address in zip(started, (addresses.service, addresses.echo), strict=True):
                _wait_ready(process, address)
            yield addresses
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.communicate()


def _wait_ready(process: "subprocess.Popen[bytes]", address: str) -> None:
    end = time.monotonic() + READY_SECONDS
    with grpc.insecure_channel(address) as channel:
        ready = grpc.channel_ready_future(channel)
        while True:
            try:
                return ready.result(timeout=0.1)
            except grpc.FutureTimeoutError:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"no server came up on {address}") from None
