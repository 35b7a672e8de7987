"""Swaps between a GPU and pinned memory by the service's movers, over one plain copy of the same bytes.

By size of block, neighbours and scattered, down, up, and both at once; that last one over what plain copies
of both directions give together, each alone.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

from bench.copies import LINK_WORDS, pairs_of
from bench.gpu_place import Place
from bench.pools import Bench, Pairs
from bench.report import Row, make_row
from kvstore.core.types import COPY, LOAD, Link
from kvstore.cuda.driver import Device, Driver
from kvstore.tiers.cuda_pool import CudaPool
from kvstore.tiers.cuda_thread import CudaThread
from kvstore.tiers.pinning import Pinning
from kvstore.tiers.pool import HostPool

__all__ = ["measure", "swaps"]

# By name: bytes, and the goal for one direction.
BLOCK_SIZES: dict[str, tuple[int, float | None]] = {"256 KiB": (256 << 10, 0.75), "2 MiB": (2 << 20, 0.90)}
BLOCK_SIZES_SMALL: dict[str, tuple[int, float | None]] = {"64 KiB": (64 << 10, None)}
BOTH_GOAL = 0.75
POOL_BYTES, POOL_BYTES_SMALL = 512 << 20, 2 << 20
ROUNDS, ROUNDS_QUICK = 7, 2
PIN_SECONDS = 20.0


def measure(place: Place, quick: bool) -> Iterator[Row]:
    rounds = ROUNDS_QUICK if quick else ROUNDS
    if place.is_gpu:
        yield from swaps(place.driver(), place.uuid, BLOCK_SIZES, POOL_BYTES, rounds)
    else:
        yield from swaps(place.driver(), place.uuid, BLOCK_SIZES_SMALL, POOL_BYTES_SMALL, rounds)


def swaps(
    driver: Driver,
    uuid: str,
    sizes: Mapping[str, tuple[int, float | None]],
    pool_bytes: int,
    rounds: int,
) -> Iterator[Row]:
    for size, (block_bytes, goal) in sizes.items():
        with cuda_bench(driver, uuid, block_bytes, pool_bytes) as (bench, plain):
            for how in ("neighbours", "scattered"):
                pairs = pairs_of(bench, how, 0, 1)
                for link, words in LINK_WORDS.items():
                    name = f"swap {words}, blocks of {size}, {how} [a pinned copy]"
                    yield _row(name, bench, {link: pairs}, plain, rounds, goal)
                both = {COPY: pairs_of(bench, how, 0, 2), LOAD: pairs_of(bench, how, 1, 2)}
                name = f"swap both ways at once, blocks of {size}, {how} [twice a pinned copy]"
                yield _row(name, bench, both, plain, rounds, BOTH_GOAL if goal is not None else None)


@contextmanager
def cuda_bench(
    driver: Driver, uuid: str, block_bytes: int, pool_bytes: int
) -> "Iterator[tuple[Bench, PlainCopies]]":
    """Pools as the service makes them, the host's pinned, and the device for copies beside the movers."""
    thread = CudaThread(driver, uuid)
    frames = pool_bytes // block_bytes
    try:
        with (
            HostPool("cpu", frames, block_bytes, 1) as cpu,
            CudaPool("gpu", frames, block_bytes, (thread,)) as gpu,
        ):
            cpu.frames(0)[:] = 1
            pinning = Pinning(cpu, (thread,))
            pinning.start()
            _wait_pinned(pinning)
            # It has the surface of a HostPool where the movers ask.
            bench = Bench(cast("HostPool", gpu), cpu)
            plain = PlainCopies(driver, uuid, gpu.address(0), cpu.address(0), pool_bytes)
            try:
                yield bench, plain
            finally:
                plain.close()
                bench.movers.close(10.0)
                pinning.close()
    finally:
        thread.close()


class PlainCopies:
    """Of the whole pool, in one call, by a stream of their own."""

    def __init__(self, driver: Driver, uuid: str, gpu: int, cpu: int, size: int) -> None:
        self._device: Device = driver.open(uuid)
        self._places = {COPY: (cpu, gpu), LOAD: (gpu, cpu)}
        self._size = size
        with self._device.current():
            self._stream, self._event = self._device.make_stream(), self._device.make_event()

    def rate(self, link: Link) -> float:
        """GB/s."""
        target, source = self._places[link]
        with self._device.current():
            began = time.perf_counter()
            self._device.copy(target, source, self._size, self._stream)
            self._device.record(self._event, self._stream)
            while not self._device.is_done(self._event):
                pass
            return self._size / 1e9 / (time.perf_counter() - began)

    def close(self) -> None:
        with self._device.current():
            self._device.destroy_event(self._event)
            self._device.destroy_stream(self._stream)
        self._device.close()


def _row(
    name: str,
    bench: Bench,
    pairs: dict[Link, Pairs],
    plain: PlainCopies,
    rounds: int,
    goal: float | None,
) -> Row:
    gigabytes = sum(map(len, pairs.values())) * bench.block_bytes / 1e9
    samples: list[float] = []
    references: list[float] = []
    for _ in range(rounds + 1):
        transfers = [bench.transfers(link, each) for link, each in pairs.items()]
        samples.append(gigabytes / bench.move(*transfers))
        references.append(sum(plain.rate(link) for link in pairs))
    return _made(name, samples[1:], references[1:], goal)


def _made(name: str, samples: Sequence[float], references: Sequence[float], goal: float | None) -> Row:
    return make_row(name, "GB/s", samples, reference=references, ratio_at_least=goal)


def _wait_pinned(pinning: Pinning) -> None:
    end = time.monotonic() + PIN_SECONDS
    while not pinning.is_over:
        if time.monotonic() > end:
            raise SystemExit("pinning does not end")
        time.sleep(0.01)
    if pinning.problem:
        raise SystemExit(f"the CPU pool is not pinned: {pinning.problem}")
