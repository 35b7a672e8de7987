"""What the links can do, measured before anybody uses them: bandwidth and fixed cost, alone and together.

It runs in pools that were just made, whose frames nobody owns yet, and on blocks of its own in the disk tier,
which it deletes again. So it has to be over before the first engine gets a frame. That costs the first Attach
less than making the pools does (`SECONDS_MAX` at the most), and what it finds is not blurred by an engine's
work; a restart knows it already and measures nothing.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from kvstore.core.effects import Transfer
from kvstore.core.types import (
    COPY,
    DISK,
    LOAD,
    READ,
    WRITE,
    BlockKey,
    Frame,
    Link,
    NamespaceId,
    StoredKey,
    TenantId,
    TransferId,
    WriterId,
)
from kvstore.tiers.copying import GpuPool, copy_moves
from kvstore.tiers.disk import DiskTier, DiskWriteFailed
from kvstore.tiers.moves import Move, Part, read_blocks, write_blocks
from kvstore.tiers.pacing import Clock, RealClock, TokenBucket
from kvstore.tiers.pool import HostPool
from kvstore.tiers.rates import LinkRates

__all__ = ["BLOCK_COUNTS", "SECONDS_MAX", "block_counts", "calibrate", "calibration_keys"]

SECONDS_MAX = 1.0
BLOCK_COUNTS = (1, 4, 16, 64)
# Of small blocks four times as many, and so on, up to so many bytes: large transfers are to be known.
BYTES_MOST = 4 << 20
CONCURRENCIES = (1, 2, 4, 8)
TRIES = 3
TRIES_TOGETHER = 2
# Each of several at once moves so many blocks.
BLOCKS_TOGETHER = 16


@dataclass(slots=True)
class _Bench:
    """A link and the blocks to try it with: position n is frame n on both sides, key n on disk."""

    link: Link
    move: Move
    blocks: int
    block_bytes: int
    keys: Sequence[StoredKey] = ()
    bucket: TokenBucket = field(default_factory=lambda: TokenBucket(RealClock()))
    clock: Clock = field(default_factory=RealClock)
    transfer: Transfer = field(init=False)

    def __post_init__(self) -> None:
        frames = tuple(map(Frame, range(self.blocks)))
        source, target = self.link
        self.transfer = Transfer(
            id=TransferId(0),
            source=source,
            target=target,
            source_frames=frames if source is not DISK else (),
            target_frames=frames if target is not DISK else (),
            keys=tuple(self.keys),
        )

    def run(self, start: int, count: int) -> None:
        """Moves blocks from `start` on, modulo those that there are. Raises where one fails."""
        start %= max(1, self.blocks - count + 1)
        source, target = self.link
        part = Part(
            transfer=self.transfer,
            start=start,
            stop=start + count,
            bucket=self.bucket,
            clock=self.clock,
            returned=lambda position: None,
        )
        if self.move(part).failed:
            raise DiskWriteFailed(f"a calibration of {source.name} to {target.name} failed")


def calibrate(
    rates: LinkRates,
    gpu: GpuPool,
    cpu: HostPool | None,
    disk: DiskTier | None = None,
    keys: Sequence[StoredKey] = (),
    *,
    seconds_max: float = SECONDS_MAX,
) -> None:
    """Fills `rates`. `keys`: blocks that may be written to disk and deleted, as many as there is room for.

    What can't be measured is left out: the links at work will tell.
    """
    if cpu is None:
        return
    frames = min(gpu.frame_count, cpu.frame_count, block_counts(cpu.frame_bytes)[-1])
    down, up = copy_moves(gpu, cpu)
    copy = _Bench(COPY, down, frames, cpu.frame_bytes)
    load = _Bench(LOAD, up, frames, cpu.frame_bytes)
    share = seconds_max / (4 if disk is not None and keys else 2)
    for bench, other in ((copy, load), (load, copy)):
        _measure(rates, bench, share, other)
    keys = keys[: min(frames, len(keys))]
    if disk is None or not keys:
        return
    write = _Bench(WRITE, partial(write_blocks, cpu, disk), len(keys), cpu.frame_bytes, keys)
    try:
        # One batch at a time is written, ever.
        written = _measure(rates, write, share, None, concurrencies=())
        read = _Bench(READ, partial(read_blocks, disk, cpu), written, cpu.frame_bytes, keys[:written])
        _measure(rates, read, share, None)
    except DiskWriteFailed:
        pass  # A disk that fails is the disk tier's to tell of.
    finally:
        disk.delete(keys)


def block_counts(frame_bytes: int) -> tuple[int, ...]:
    """How many blocks of this size are tried at once."""
    counts: tuple[int, ...] = BLOCK_COUNTS
    while counts[-1] * frame_bytes < BYTES_MOST:
        counts = (*counts, counts[-1] * 4)
    return counts


def calibration_keys(
    namespace: NamespaceId, tenant: TenantId, writer: WriterId, count: int
) -> tuple[StoredKey, ...]:
    """Names that no engine's blocks have. Should they be left behind, they are evicted as any others."""
    return tuple(
        StoredKey(
            namespace=namespace,
            tenant=tenant,
            key=BlockKey(sha256(b"kvstore calibration" + number.to_bytes(4, "little")).digest()),
            parent=BlockKey(b""),
            writer=writer,
        )
        for number in range(count)
    )


def _measure(
    rates: LinkRates,
    bench: _Bench,
    seconds_max: float,
    other: _Bench | None,
    concurrencies: Sequence[int] = CONCURRENCIES,
) -> int:
    """Returns the most blocks that were moved at once."""
    end = bench.clock.now() + seconds_max
    samples = _alone(bench, bench.clock.now() + seconds_max / 2)
    together: dict[int, float] = {}
    count = min(BLOCKS_TOGETHER, bench.blocks)
    # By how long one took alone: several at once take as long each, at the worst.
    expected = max(seconds / blocks for blocks, seconds in samples) * count
    for number in concurrencies:
        if bench.clock.now() + expected * number * TRIES_TOGETHER > end:
            break
        moves = [partial(bench.run, each * count, count) for each in range(number)]
        seconds = min(_at_once(moves, bench.clock) for _ in range(TRIES_TOGETHER))
        together[number] = number * count * bench.block_bytes / seconds
    both_ways = 1.0
    if other is not None and 1 in together:
        seconds = _at_once([partial(bench.run, 0, count), partial(other.run, count, count)], bench.clock)
        both_ways = min(1.0, count * bench.block_bytes / seconds / together[1])
    sizes = [(blocks * bench.block_bytes, seconds) for blocks, seconds in samples]
    rates.set_measured(bench.link, sizes, together, both_ways)
    return max(blocks for blocks, _ in samples)


def _alone(bench: _Bench, end: float) -> list[tuple[int, float]]:
    """Blocks and seconds of each try that there is time for; at least one.

    The very first does not count where there are others: it makes files, and touches pages that are new.
    """
    counts = [count for count in block_counts(bench.block_bytes) if count <= bench.blocks]
    first = _time(bench, counts[0])
    samples: list[tuple[int, float]] = []
    took: dict[int, float] = {}
    for _ in range(TRIES):
        for count in counts:
            expected = took.get(count, max(took.values(), default=0.0) * 4)
            if bench.clock.now() + expected > end:
                break
            took[count] = _time(bench, count)
            samples.append((count, took[count]))
    return samples or [(counts[0], first)]


def _time(bench: _Bench, count: int) -> float:
    began = bench.clock.now()
    bench.run(0, count)
    return max(bench.clock.now() - began, 1e-7)


def _at_once(moves: Sequence[Callable[[], None]], clock: Clock) -> float:
    """Seconds until all are done."""
    failed: list[BaseException] = []

    def run(move: Callable[[], None]) -> None:
        try:
            move()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(move,)) for move in moves]
    began = clock.now()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return max(clock.now() - began, 1e-7)
