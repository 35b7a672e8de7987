"""What a swap-in waits for where 200 writes are queued before it at the disk.

On a device in virtual time it is told in what was written before the last byte was read, on any machine the
same. As one write counts what the tier has in service at a time, which it gives to the device in halves. On
the real disk it is told in milliseconds.
"""

import threading
import time

from bench.disk_tier import TierBench, bench_folder, bench_tier
from bench.report import Row, make_row
from bench.virtual_device import VirtualDevice
from kvstore.tiers.disk_io import WRITE_BYTES_MAX, WRITE_THREADS
from kvstore.tiers.files import DirectFiles
from kvstore.tiers.pool import HostPool

__all__ = ["waits"]

BLOCK_BYTES = 2 << 20
# Those of the swap-in come first.
READ_BLOCKS, WRITES = 8, 200
POOL_BYTES = (READ_BLOCKS + WRITES) * BLOCK_BYTES
# A good NVMe drive.
BYTES_A_SECOND, FIXED_SECONDS, SYNC_SECONDS = 3e9, 80e-6, 500e-6
READ = slice(0, READ_BLOCKS)
# Below the tier's deadline, after which a paused device is a dead one.
QUEUE_SECONDS = 8.0


def waits(rounds: int) -> list[Row]:
    virtual = VirtualDevice(
        DirectFiles(),
        bytes_a_second=BYTES_A_SECOND,
        fixed_seconds=FIXED_SECONDS,
        sync_seconds=SYNC_SECONDS,
    )
    with bench_folder() as folder, HostPool("cpu", POOL_BYTES // BLOCK_BYTES, BLOCK_BYTES, 1) as pool:
        with bench_tier(folder, pool, files=virtual) as bench:
            rows = _virtual_rows(bench, virtual, rounds)
        with bench_tier(folder, pool) as bench:
            return [*rows, _real_row(bench, rounds)]


def _virtual_rows(bench: TierBench, device: VirtualDevice, rounds: int) -> list[Row]:
    written, alone, loaded = [], [], []
    for _ in range(rounds):
        bench.new_keys()
        bench.write(READ)
        began = device.now
        bench.read(READ)
        alone.append((device.now - began) * 1e3)
        device.pause()
        writers = _start_writes(bench)
        device.wait_for_service("write")
        _wait_for_queue(bench)
        # On the paused device: what is served from now on, up to its last byte, it has waited for.
        served, began = len(device.served), device.now
        read = threading.Thread(target=bench.read, args=(READ,))
        read.start()
        device.wait_for_arrival("read")
        device.resume()
        read.join()
        for writer in writers:
            writer.join()
        since = device.served[served:]
        last = max(place for place, io in enumerate(since) if io.kind == "read")
        before = sum(io.size_bytes for io in since[:last] if io.kind == "write")
        written.append(before / WRITE_BYTES_MAX)
        loaded.append((since[last].end - began) * 1e3)
    name = f"swap-in of {READ_BLOCKS * BLOCK_BYTES >> 20} MiB under {WRITES} queued writes, virtual device"
    size = f"writes of {WRITE_BYTES_MAX >> 20} MiB"
    return [
        make_row(
            f"{name}: what was written before its end, at most, in {size}", "", [max(written)], at_most=1
        ),
        make_row(f"{name}: until its end, over alone", "ms", loaded, reference=alone),
    ]


def _real_row(bench: TierBench, rounds: int) -> Row:
    alone, loaded = [], []
    for _ in range(rounds):
        bench.new_keys()
        bench.write(READ)
        alone.append(_read_ms(bench))
        writers = _start_writes(bench)
        loaded.append(_read_ms(bench))
        for writer in writers:
            writer.join()
    name = f"swap-in of {READ_BLOCKS * BLOCK_BYTES >> 20} MiB under {WRITES} queued writes, real disk"
    return make_row(f"{name}: until its end, over alone", "ms", loaded, reference=alone)


def _wait_for_queue(bench: TierBench) -> None:
    """Until all are queued that are not in service."""
    end = time.monotonic() + QUEUE_SECONDS
    while bench.tier.writes_queued < WRITES - WRITE_THREADS:
        if time.monotonic() > end:
            raise SystemExit(f"only {bench.tier.writes_queued} of {WRITES} writes are queued")
        time.sleep(0.001)


def _start_writes(bench: TierBench) -> list[threading.Thread]:
    """Each a batch of its own, so that all are queued at once."""
    lots = [slice(place, place + 1) for place in range(READ_BLOCKS, READ_BLOCKS + WRITES)]
    writers = [threading.Thread(target=bench.write, args=(lot,)) for lot in lots]
    for writer in writers:
        writer.start()
    return writers


def _read_ms(bench: TierBench) -> float:
    began = time.perf_counter()
    bench.read(READ)
    return (time.perf_counter() - began) * 1e3
