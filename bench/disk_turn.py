"""A turn of 8,192 tokens that only the disk has, brought back through the real service, over computing it.

Brought back: from the step that asks for it, at a service that was just started on the folder, to the event
that tells that all of it is on the "GPU". Computed: by the reference engine's model with two threads, in
fp32. That is timed for the first part of the prompt only and multiplied, which is less than the whole takes:
attention looks back on ever more.
"""

import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from bench.disk_tier import bench_folder
from bench.processes import service
from bench.report import Row, make_row
from engine.model import Llama
from engine.models import ModelNotFoundError, load_model_weights
from engine.plain import answer_plainly
from kvstore.client import Client, Layout, operations
from kvstore.client.keys import block_keys
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["turn"]

TOKENS, BLOCK_TOKENS = 8192, 16
BLOCKS = TOKENS // BLOCK_TOKENS
# Computed in truth.
PART_TOKENS = 512
THREADS = 2
CPU_BYTES = 128 << 20
DISK_BYTES = 1 << 30
WAIT_SECONDS = 120.0
SEQUENCE = 1
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def turn(rounds: int) -> tuple[list[Row], str]:
    """The rows, or why there are none."""
    try:
        model = Llama(load_model_weights("smollm2"))
    except ModelNotFoundError as error:
        return [], str(error)
    torch.set_num_threads(THREADS)
    prompt = [10 + place % 4000 for place in range(TOKENS)]
    samples: dict[str, list[float]] = {}
    references: list[float] = []
    with bench_folder() as folder:
        stores = {}
        for dtype_name, dtype in DTYPES.items():
            layout = model.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=dtype)
            fingerprint = layout.fingerprint(model.weights.digest)
            name = f"{dtype_name}, {layout.block_bytes / BLOCK_TOKENS / 1024:g} KiB a token"
            stores[name] = _Store(folder / dtype_name, layout.block_bytes, fingerprint, prompt)
            stores[name].fill()
        for _ in range(rounds):
            for name, store in stores.items():
                samples.setdefault(name, []).append(store.bring_back())
            references.append(_computed(model, prompt))
    return [
        make_row(
            f"turn of {TOKENS} tokens, {name}: from disk to usable, over computing it (at least)",
            "s",
            seconds,
            reference=references,
        )
        for name, seconds in samples.items()
    ], ""


def _computed(model: Llama, prompt: list[int]) -> float:
    began = time.perf_counter()
    answer_plainly(model, prompt[:PART_TOKENS], 1, block_tokens=BLOCK_TOKENS)
    return (time.perf_counter() - began) * TOKENS / PART_TOKENS


class _Store:
    """The service on one folder, started anew for each call."""

    def __init__(self, disk: Path, block_bytes: int, fingerprint: bytes, prompt: list[int]) -> None:
        self._layout = Layout(block_tokens=BLOCK_TOKENS, block_bytes=block_bytes, fingerprint=fingerprint)
        self._keys = block_keys(prompt, BLOCK_TOKENS)
        gpu = (BLOCKS + 8) * -(-block_bytes // 4096) * 4096
        sizes = ("--gpu", str(gpu), "--cpu", str(CPU_BYTES))
        self._service = partial(service, *sizes, "--disk", str(disk), "--disk-bytes", str(DISK_BYTES))

    def fill(self) -> None:
        """With bytes that tell each block from the others."""
        with self._service() as address, Client(address) as client:
            client.attach(self._layout)
            client.step([operations.allocate(SEQUENCE, TOKENS, session="chat")])
            for place, frame in enumerate(client.tables.table(SEQUENCE)):
                client.pools[0].frames[frame] = np.frombuffer(self._keys[place], np.uint8)[0]
            client.step([operations.commit(SEQUENCE, 0, self._keys)])
            client.step([operations.free([SEQUENCE], pb.FreeRequest.SESSION)])
            client.step([])
            end = time.monotonic() + WAIT_SECONDS
            while (
                next(
                    each for each in client.operator.usage().tiers if each.tier == pb.TIER_DISK
                ).blocks_moved_in
                < BLOCKS
            ):
                if time.monotonic() > end:
                    raise SystemExit(f"not on disk within {WAIT_SECONDS:g} s: {client.operator.usage()}")
                client.wait_events(0.05)

    def bring_back(self) -> float:
        """Seconds."""
        with self._service() as address, Client(address) as client:
            client.attach(self._layout)
            client.step([])
            began = time.perf_counter()
            client.step([operations.allocate(SEQUENCE, TOKENS + 1, block_keys=self._keys)])
            tokens = client.wait_resident(SEQUENCE, WAIT_SECONDS)
            seconds = time.perf_counter() - began
            table = client.tables.table(SEQUENCE)
            wrong = [
                place
                for place, key in enumerate(self._keys)
                if client.pools[0].frames[table[place]][0] != key[0]
            ]
        if tokens < TOKENS or wrong:
            raise SystemExit(f"{tokens} tokens came back; blocks {wrong[:5]} are others'")
        return seconds
