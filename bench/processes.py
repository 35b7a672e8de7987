"""Servers that are measured, each in a process of its own, on Unix sockets in a folder of their own."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

__all__ = ["Addresses", "servers", "service"]

READY_SECONDS = 30.0
GPU_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    service: str
    echo: str


@contextmanager
def servers() -> Iterator[Addresses]:
    with _folder() as folder:
        service, echo = folder / "k.sock", folder / "echo.sock"
        sizes = ("--gpu", str(GPU_BYTES), "--cpu", "0")
        with _started(service, *_serve(service, *sizes)), _started(echo, "-m", "bench.echo", str(echo)):
            yield Addresses(service=f"unix:{service}", echo=f"unix:{echo}")


@contextmanager
def service(*flags: str) -> Iterator[str]:
    """The address of a service alone."""
    with _folder() as folder:
        path = folder / "k.sock"
        with _started(path, *_serve(path, *flags)):
            yield f"unix:{path}"


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvbench-") as folder:
        yield Path(folder)


def _serve(path: Path, *flags: str) -> tuple[str, ...]:
    return ("-m", "kvstore", "serve", "--socket", str(path), *flags)


@contextmanager
def _started(path: Path, *command: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE)
    try:
        _wait_ready(process, f"unix:{path}")
        yield
    finally:
        process.terminate()
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
