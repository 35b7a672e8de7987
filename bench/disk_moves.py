"""Blocks to the disk and back, over the device's own speed with the same bytes, in turns.

Written is what all in the pool takes until it is durable: checksums, bytes, a sync for each batch, its
entries in the index. Read is what it takes until each block is verified. Slots have been written before, as
in a folder in use. The page cache has no part in it, since both go past it.
"""

import time
from collections.abc import Sequence
from functools import partial

import xxhash

from bench.disk_reference import Device, Timed, bench_device, timing
from bench.disk_tier import BLOCK_SIZES, TierBench, at_once, bench_folder, bench_tier
from bench.report import Row, make_row
from kvstore.core.config import TRANSFER_BYTES, WRITE_TIMES
from kvstore.tiers.movers import READ_PIECE_BYTES, READ_THREADS, WRITE_THREADS
from kvstore.tiers.pool import HostPool

__all__ = ["moves"]

POOL_BYTES = 256 << 20
# Bytes of a batch, how many are under way, and whether blocks are deleted before each: as the mover does it
# where there is room and in a full tier; where the CPU tier is small; and as it would be one at a time.
USUAL = f"{WRITE_TIMES * TRANSFER_BYTES >> 20} MiB, {WRITE_THREADS} under way"
BATCHES = {
    USUAL: (WRITE_TIMES * TRANSFER_BYTES, WRITE_THREADS, False),
    f"{USUAL}, full tier": (WRITE_TIMES * TRANSFER_BYTES, WRITE_THREADS, True),
    f"{TRANSFER_BYTES >> 20} MiB, {WRITE_THREADS} under way": (TRANSFER_BYTES, WRITE_THREADS, False),
    f"{TRANSFER_BYTES >> 20} MiB, one at a time": (TRANSFER_BYTES, 1, False),
}
# Those that the goal is for; the others show what it takes.
GOAL_BATCHES = (USUAL, f"{USUAL}, full tier")
GOAL_SIZE = "2 MiB"
SHARE_GOAL = 0.85
CPU_GOAL = 0.16


def moves(rounds: int) -> list[Row]:
    rows = []
    for size, block_bytes in BLOCK_SIZES.items():
        with (
            bench_folder() as folder,
            HostPool("cpu", POOL_BYTES // block_bytes, block_bytes, 1) as pool,
            bench_tier(folder, pool) as bench,
            bench_device(folder, pool) as device,
        ):
            rows += _rows(bench, device, size, rounds)
    return rows


def _rows(bench: TierBench, device: Device, size: str, rounds: int) -> list[Row]:
    to_write, to_read = device.best()
    gigabytes = bench.pool.size_bytes / 1e9
    writes: dict[str, list[Timed]] = {batches: [] for batches in BATCHES}
    write_references: list[Timed] = []
    reads: list[Timed] = []
    read_references: list[Timed] = []
    sums: list[Timed] = []
    for _ in range(rounds + 1):
        write_references.append(device.write(to_write))
        for batches, (batch_bytes, at_a_time, in_place) in BATCHES.items():
            if not in_place:
                bench.new_keys()
            with timing() as written:
                bench.write_all(batch_bytes, at_a_time, in_place=in_place)
            writes[batches].append(written)
        read_references.append(device.read(to_read))
        reads.append(_read(bench))
        sums.append(_sum(bench))
    is_goal = size == GOAL_SIZE
    rows = [
        _speed_row(
            f"write blocks of {size}, durable, batches of {batches} [{to_write}]",
            gigabytes,
            timed,
            write_references,
            is_goal and batches in GOAL_BATCHES,
        )
        for batches, timed in writes.items()
    ]
    name = f"read blocks of {size}, cold, verified [{to_read}]"
    rows.append(_speed_row(name, gigabytes, reads, read_references, is_goal))
    floor = "[checksum and device alone]"
    for name, timed, references in (
        (f"CPU to write blocks of {size}", writes[USUAL], write_references),
        (f"CPU to read blocks of {size}", reads, read_references),
    ):
        alone = [
            (each.cpu_seconds + sum_.cpu_seconds) / gigabytes
            for each, sum_ in zip(references, sums, strict=True)
        ]
        rows.append(
            make_row(
                f"{name} {floor}",
                "s/GB",
                [each.cpu_seconds / gigabytes for each in timed[1:]],
                reference=alone[1:],
                at_most=CPU_GOAL,
            )
        )
    return rows


def _read(bench: TierBench) -> Timed:
    """As the movers do. Before, the frames get other bytes than those that are to be read."""
    bench.pool.frames(0)[:, ::4096] = time.time_ns() & 0xFF
    lots = bench.lots(READ_PIECE_BYTES)

    def run(some: Sequence[slice]) -> None:
        for lot in some:
            bench.read(lot)

    with timing() as timed:
        at_once([partial(run, lots[place::READ_THREADS]) for place in range(READ_THREADS)])
    return timed


def _sum(bench: TierBench) -> Timed:
    with timing() as timed:
        for [part] in bench.frames:
            xxhash.xxh3_128_digest(part.data)
    return timed


def _speed_row(
    name: str, gigabytes: float, timed: Sequence[Timed], references: Sequence[Timed], is_goal: bool
) -> Row:
    return make_row(
        name,
        "GB/s",
        [gigabytes / each.seconds for each in timed[1:]],
        reference=[gigabytes / each.seconds for each in references[1:]],
        ratio_at_least=SHARE_GOAL if is_goal else None,
    )
