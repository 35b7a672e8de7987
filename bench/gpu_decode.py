"""What a running engine feels of swaps: its decode steps with and without those of another engine beside it.

The engine, a model with random weights, decodes a batch over the service; another process swaps a sequence
out and in, over links that are limited to half of what they were measured to give. In turns, a window of
steps with swaps and one without.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from bench.gpu_place import Place
from bench.report import ROOT, Row, make_row
from engine.config import ModelConfig
from engine.devices import open_device
from engine.engine import Engine
from engine.model import Llama
from engine.requests import Request
from engine.weights import random_weights
from kvstore.client import Client
from kvstore.demo.children import Service
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["measure"]

SLOWED_MAX = 1.02
HALF = 0.5
ROUNDS, ROUNDS_QUICK = 9, 2
WARM_STEPS = 20


@dataclass(frozen=True, slots=True)
class _Size:
    config: ModelConfig
    dtype: torch.dtype
    sequences: int
    prompt_tokens: int
    window_steps: int
    # Blocks that are swapped.
    swapped: int


SERVED = _Size(
    ModelConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=4096,
        layers=12,
        heads=16,
        kv_heads=8,
        head_dim=64,
        context_length=4096,
        rope_theta=1e4,
        rms_norm_eps=1e-5,
    ),
    torch.bfloat16,
    sequences=16,
    prompt_tokens=1024,
    window_steps=60,
    swapped=256,
)
SMALL = _Size(
    ModelConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        layers=2,
        heads=2,
        kv_heads=1,
        head_dim=16,
        context_length=512,
        rope_theta=1e4,
        rms_norm_eps=1e-5,
    ),
    torch.float32,
    sequences=2,
    prompt_tokens=20,
    window_steps=5,
    swapped=8,
)


def measure(place: Place, quick: bool) -> Iterator[Row]:
    size, rounds = SERVED if place.is_gpu else SMALL, ROUNDS_QUICK if quick else ROUNDS
    device = open_device(place.name)
    model = Llama(device.place(random_weights(size.config, seed=1, dtype=size.dtype)))
    layout = size.config.kv_layout(block_tokens=16, dtype=size.dtype)
    with _service(place, size, layout.frame_stride_bytes) as service:
        engine = Engine(
            model,
            Client(service.address),
            device=device,
            running_max=size.sequences,
            is_ahead=device.is_late,
        )
        with closing(engine), _swapping(service.address, layout.block_bytes, size.swapped) as swapper:
            _start(engine, size, WARM_STEPS + (2 * rounds + 1) * size.window_steps)
            _halve(service.address)
            alone, beside, moved = [], [], []
            _window(engine, WARM_STEPS)
            for _ in range(rounds):
                alone.append(_window(engine, size.window_steps))
                swapper.go()
                beside.append(_window(engine, size.window_steps))
                moved.append(swapper.stop() / 1e9)
    words = f"decode step of {size.sequences} sequences, {size.prompt_tokens} tokens and more"
    yield make_row(
        f"{words}, beside swaps at half rate [without]",
        "ms",
        beside,
        reference=alone,
        ratio_at_most=SLOWED_MAX if place.is_gpu else None,
    )
    yield make_row("swapped meanwhile, out and in", "GB/s", moved)


@contextmanager
def _service(place: Place, size: _Size, frame_bytes: int) -> Iterator[Service]:
    """Room for all that runs, and no disk to speak of."""
    tokens = size.prompt_tokens + WARM_STEPS + (2 * ROUNDS + 1) * size.window_steps
    frames = size.sequences * (-(-tokens // 16) + 1) + size.swapped + 64
    with tempfile.TemporaryDirectory(prefix="kvgpu-") as folder:
        service = Service(
            "service",
            Path(folder),
            gpu_bytes=frames * frame_bytes,
            cpu_bytes=2 * (frames + size.swapped) * frame_bytes,
            disk_bytes=64 << 20,
            gpu_device=place.uuid if place.is_gpu else "",
        )
        try:
            service.until_answered()
            yield service
        finally:
            service.end()


def _start(engine: Engine, size: _Size, new_tokens: int) -> None:
    """All of them, until each has its first token."""
    generator = torch.Generator().manual_seed(5)
    streams = []
    for number in range(size.sequences):
        prompt = torch.randint(size.config.vocab_size, (size.prompt_tokens,), generator=generator)
        request = Request(id=str(number), prompt=tuple(prompt.tolist()), max_new_tokens=new_tokens)
        streams.append(engine.submit(request))
    while any(not stream.margins for stream in streams):
        engine.step()


def _halve(address: str) -> None:
    rate = pb.RateLimit(share=HALF)
    with Client(address) as client:
        client.operator.update_limits(pb.Limits(rates={"gpu_to_cpu": rate, "cpu_to_gpu": rate}))


def _window(engine: Engine, steps: int) -> float:
    """Milliseconds of a step, the median."""
    samples = []
    for _ in range(steps):
        began = time.perf_counter()
        engine.step()
        samples.append(1e3 * (time.perf_counter() - began))
    return median(samples)


class _Swapper:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def go(self) -> None:
        self._tell("go")

    def stop(self) -> float:
        """Bytes a second since `go`."""
        self._tell("stop")
        moved, seconds = self.line().split()
        return int(moved) / float(seconds)

    def line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit("the process that swaps has ended")
        return line

    def _tell(self, word: str) -> None:
        if self._process.stdin:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()


@contextmanager
def _swapping(address: str, block_bytes: int, blocks: int) -> Iterator[_Swapper]:
    command = [sys.executable, "-m", "bench.gpu_swapper", address, str(block_bytes), str(blocks)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            swapper = _Swapper(process)
            swapper.line()
            yield swapper
        finally:
            process.kill()
