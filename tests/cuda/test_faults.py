"""The tier of GPUs under faults by seed: calls that fail, memory that is short, streams that stand still, a
device that is lost. What ended well holds what it should; what failed is nobody's from that moment on: its
next owner writes to it at once, and nothing under way may write there any more.
"""

import random
from dataclasses import dataclass, field

import pytest

from kvstore.core.types import COPY, LOAD, Link
from kvstore.tiers.movers import Movers
from kvstore.tiers.pinning import Pinning
from tests.cuda.bench import BLOCK_BYTES, WAIT, CudaBench, Ends, cuda_bench, transfer

RANKS, FRAMES = 2, 40
TRANSFERS, UNDER_WAY = 80, 8
CODES = ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_OPERATING_SYSTEM")


def content(number: int, rank: int) -> bytes:
    return (number * 64 + rank).to_bytes(8, "little") * (BLOCK_BYTES // 8)


@dataclass
class Side:
    """One pool: what each frame holds, and which of them transfers are reading or writing."""

    holds: list[int]
    busy: set[int] = field(default_factory=set)


@dataclass
class UnderWay:
    link: Link
    sources: list[int]
    targets: list[int]


class World:
    def __init__(self, bench: CudaBench, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bench = bench
        self.ends = Ends()
        self.movers = Movers(bench.gpu, bench.cpu, None, self.ends)
        self.numbers = 0
        self.gpu, self.cpu = (Side([0] * FRAMES) for _ in range(2))
        self.under_way: dict[int, UnderWay] = {}
        self.good = self.failed = 0
        for side in (self.gpu, self.cpu):
            for frame in range(FRAMES):
                self.write(side, frame)

    def write(self, side: Side, frame: int) -> None:
        """As its owner does, who knows of nothing that is under way there."""
        self.numbers += 1
        side.holds[frame] = self.numbers
        for rank in range(RANKS):
            given = content(self.numbers, rank)
            if side is self.gpu:
                self.bench.write_gpu(rank, frame, given)
            else:
                self.bench.cpu.frames(rank)[frame, :BLOCK_BYTES] = bytearray(given)

    def check(self, side: Side, frame: int) -> None:
        for rank in range(RANKS):
            if side is self.gpu:
                found = self.bench.read_gpu(rank, frame)
            else:
                found = self.bench.cpu.frames(rank)[frame, :BLOCK_BYTES].tobytes()
            assert found == content(side.holds[frame], rank), (frame, rank)

    def start(self, number: int) -> None:
        link = self.rng.choice((COPY, LOAD))
        source, target = self.sides(link)
        count = self.rng.randrange(1, 6)
        sources = self.rng.sample(sorted(set(range(FRAMES)) - source.busy), count)
        targets = self.rng.sample(sorted(set(range(FRAMES)) - target.busy), count)
        if self.rng.random() < 0.5:
            sources.sort()
            targets.sort()
        source.busy.update(sources)
        target.busy.update(targets)
        self.under_way[number] = UnderWay(link, sources, targets)
        self.movers.start([transfer(number, link, sources, targets)], [])

    def take_ends(self, at_most: int) -> None:
        """Until no more than so many are under way."""
        with self.ends.told:
            begun = len(self.under_way)
            assert self.ends.told.wait_for(lambda: begun - len(self.ends.failed) <= at_most, WAIT)
            ended, self.ends.failed = self.ends.failed, {}
        for number, failed in ended.items():
            work = self.under_way.pop(number)
            source, target = self.sides(work.link)
            for place, (from_, to) in enumerate(zip(work.sources, work.targets, strict=True)):
                if place in failed:
                    self.failed += 1
                    self.write(target, to)
                else:
                    self.good += 1
                    target.holds[to] = source.holds[from_]
                    self.check(target, to)
            source.busy.difference_update(work.sources)
            target.busy.difference_update(work.targets)

    def fault(self) -> None:
        device = self.rng.choice(self.bench.devices)
        call = self.rng.choice(("copy_batch", "copy", "record", "make_event"))
        device.fail(call, after=self.rng.randrange(3), code=self.rng.choice(CODES))

    def sides(self, link: Link) -> tuple[Side, Side]:
        return (self.gpu, self.cpu) if link == COPY else (self.cpu, self.gpu)


@pytest.mark.parametrize("seed", range(24))
def test_nothing_is_lost_or_clobbered_whatever_fails(seed: int) -> None:
    with cuda_bench(
        seed, ranks=RANKS, frames=FRAMES, cpu_frames=FRAMES, copies_batches=seed % 3 > 0
    ) as bench:
        bench.devices[0].fail("pin", after=seed % 2)
        pinning = Pinning(bench.cpu, bench.threads)
        pinning.start()
        world = World(bench, seed)
        # One at least for sure: which calls the others meet is left to the threads.
        bench.devices[seed % RANKS].fail("copy_batch" if bench.devices[0].copies_batches else "copy")
        for number in range(TRANSFERS):
            if world.rng.random() < 0.3:
                world.fault()
            if world.rng.random() < 0.1:
                world.rng.choice(bench.devices).streams.stall()
            world.start(number)
            if len(world.under_way) >= UNDER_WAY or world.rng.random() < 0.1:
                for device in bench.devices:
                    device.streams.resume()
                world.take_ends(world.rng.randrange(UNDER_WAY // 2))
        for device in bench.devices:
            device.streams.resume()
        world.take_ends(0)
        assert world.movers.close(WAIT)
        for side in (world.gpu, world.cpu):
            assert not side.busy
            for frame in range(FRAMES):
                world.check(side, frame)
        assert world.good > world.failed > 0
        pinning.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_lost_device_ends_all_that_is_under_way_once(seed: int) -> None:
    with cuda_bench(seed, ranks=RANKS, frames=FRAMES, cpu_frames=FRAMES, check_left=False) as bench:
        world = World(bench, seed)
        for number in range(TRANSFERS // 2):
            world.start(number)
            if len(world.under_way) >= UNDER_WAY:
                world.take_ends(world.rng.randrange(UNDER_WAY))
        world.rng.choice(bench.devices).lose()
        # It is noticed by whoever asks something of it next.
        world.start(TRANSFERS)
        world.take_ends(0)
        assert not world.movers.alive()
        assert world.movers.close(WAIT)
        for side in (world.gpu, world.cpu):
            for frame in range(FRAMES):
                world.check(side, frame)
