"""Two processes and one GPU: what the service rests on, before anything of the service runs.

One process makes memory, gives it away and copies between it and pinned memory; this one maps it and keeps
the GPU busy with a product of matrices. Told are whether the memory is the same on both sides, how much
copies and kernels of two processes slow each other (1: they overlap wholly, 0: they take turns), and whether
the memory is free when its maker was killed and nobody maps it any more.
"""

import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bench.gpu_exporter import PATTERN_BYTES, pattern
from bench.gpu_place import Place
from bench.report import ROOT, Row, make_row
from kvstore.cuda.driver import Device
from kvstore.cuda.memory import DeviceMemory

__all__ = ["Exporter", "measure", "overlap"]

WORDS = {"d": "to the CPU", "u": "to the GPU"}
SIZE, SIZE_SMALL = 256 << 20, 4 << 20
MATRIX, MATRIX_SMALL = 8192, 64
WINDOW_SECONDS, WINDOW_SECONDS_SMALL = 0.5, 0.02
ROUNDS, ROUNDS_QUICK = 5, 2
# Of other processes' contexts that come and go.
LEFT_MIB_MAX = 64
FREE_SECONDS = 10.0


def measure(place: Place, quick: bool) -> Iterator[Row]:
    size, edge = (SIZE, MATRIX) if place.is_gpu else (SIZE_SMALL, MATRIX_SMALL)
    device = place.driver().open(place.uuid)
    with device.current(), torch.inference_mode():
        matrix = torch.randn(edge, edge, device=place.device).to(torch.bfloat16)
        product = torch.empty_like(matrix)
        multiply = _Multiply(place, matrix, product)
        multiply.run(WINDOW_SECONDS_SMALL)
        free_before = device.memory_free_bytes()
        with exporting(place, size) as exporter:
            memory = DeviceMemory.import_fd(device, exporter.fd, exporter.size)
            seen = place.tensor(memory.address, size // PATTERN_BYTES, PATTERN_BYTES)
            yield _wrong("bytes that another process sees wrong in memory that was passed to it", seen, size)
            yield from _beside(exporter, multiply, ROUNDS_QUICK if quick else ROUNDS, place.is_gpu)
            exporter.kill()
            yield _wrong("bytes wrong after SIGKILL of the memory's maker, still mapped here", seen, size)
            del seen
            gc.collect()
            place.synchronize()
            memory.close()
        yield make_row(
            "not free again after SIGKILL of its maker and the last mapping's end",
            "MiB",
            [_left(device, free_before)],
            at_most=LEFT_MIB_MAX,
        )
    device.close()


def overlap(copies: float, kernels: float) -> float:
    """Of both rates at once as shares of each alone: 1 where neither feels the other, 0 where they add up to
    what one has alone."""
    return copies + kernels - 1


class Exporter:
    """The other process. `fd` is this one's own."""

    def __init__(self, process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
        self._process = process
        self._connection = connection
        told, [self.fd], _, _ = socket.recv_fds(connection, 64, 1)
        self.size = int(told)

    def start(self, letter: str) -> None:
        self._connection.sendall(letter.encode())

    def stop(self) -> float:
        """Bytes a second since `start`."""
        self._connection.sendall(b".")
        told = b""
        while not told.endswith(b"\n"):
            part = self._connection.recv(100)
            if not part:
                raise SystemExit("the process that copies has ended")
            told += part
        copied, seconds = told.split()
        return int(copied) / float(seconds)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextmanager
def exporting(place: Place, size: int) -> Iterator[Exporter]:
    with tempfile.TemporaryDirectory(prefix="kvgpu-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder) / "s")
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(30.0)
        command = [sys.executable, "-m", "bench.gpu_exporter", path, place.uuid, str(size)]
        process = subprocess.Popen(command, cwd=ROOT)
        try:
            connection, _ = listener.accept()
            with connection:
                exporter = Exporter(process, connection)
                try:
                    yield exporter
                finally:
                    os.close(exporter.fd)
        finally:
            process.kill()
            process.wait()


class _Multiply:
    def __init__(self, place: Place, matrix: torch.Tensor, product: torch.Tensor) -> None:
        self._place = place
        self._matrix = matrix
        self._product = product

    def run(self, seconds: float) -> float:
        """Products a second, over at least so long."""
        end, spent, count = time.perf_counter() + seconds, 0.0, 0
        while time.perf_counter() < end:
            spent += 8 * self._place.seconds(self._multiply, 8)
            count += 8
        return count / spent

    def _multiply(self) -> None:
        torch.matmul(self._matrix, self._matrix, out=self._product)


def _beside(exporter: Exporter, multiply: _Multiply, rounds: int, is_gpu: bool) -> Iterator[Row]:
    window = WINDOW_SECONDS if is_gpu else WINDOW_SECONDS_SMALL
    for letter, words in WORDS.items():
        alone, copied, beside, copied_beside = [], [], [], []
        for _ in range(rounds):
            alone.append(multiply.run(window))
            exporter.start(letter)
            time.sleep(window)
            copied.append(exporter.stop() / 1e9)
            exporter.start(letter)
            beside.append(multiply.run(window))
            copied_beside.append(exporter.stop() / 1e9)
        yield make_row(f"matmuls beside copies {words} of another process", "/s", beside, reference=alone)
        name = f"copies {words} beside matmuls of another process"
        yield make_row(name, "GB/s", copied_beside, reference=copied)
        shares = [
            overlap(both / one, kernels / only)
            for both, one, kernels, only in zip(copied_beside, copied, beside, alone, strict=True)
        ]
        yield make_row(f"they overlap, {words} (1: wholly, 0: in turns)", "", shares)


def _wrong(name: str, seen: torch.Tensor, size: int) -> Row:
    wrong = int((seen.cpu() != torch.from_numpy(pattern(size))).sum())
    return make_row(name, "bytes", [float(wrong)], at_most=0)


def _left(device: Device, free_before: int) -> float:
    """The driver may take a moment for a process that was killed."""
    end = time.monotonic() + FREE_SECONDS
    while (left := (free_before - device.memory_free_bytes()) / 2**20) > LEFT_MIB_MAX:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return max(0.0, left)
