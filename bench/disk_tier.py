"""A disk tier in a folder of its own, with a pool whose frames it is filled from and fills."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvstore.core.types import BlockKey, NamespaceId, StoredKey, TenantId, WriterId
from kvstore.tiers.disk import DiskTier, ReadOutcome
from kvstore.tiers.disk_tickets import Ticket
from kvstore.tiers.files import Files
from kvstore.tiers.pool import HostPool

__all__ = ["BLOCK_SIZES", "TierBench", "at_once", "bench_folder", "bench_tier"]

BLOCK_SIZES = {"256 KiB": 256 << 10, "2 MiB": 2 << 20, "4 MiB": 4 << 20}
# Segments are as large as in a folder of a server's; what isn't written isn't made.
CAP_BYTES = 16 << 30


@contextmanager
def bench_folder() -> Iterator[Path]:
    """On the device that BENCH_DISK names a folder of; else where temporary files go."""
    with tempfile.TemporaryDirectory(prefix="kvbench-", dir=os.environ.get("BENCH_DISK")) as folder:
        yield Path(folder)


class TierBench:
    """Each frame of the pool has a key at a time, under which `write` stores it and `read` brings it back."""

    def __init__(self, tier: DiskTier, pool: HostPool) -> None:
        self.tier, self.pool = tier, pool
        self.frames: list[list[NDArray[np.uint8]]] = [[frame] for frame in pool.frames(0)]
        self._payloads = [[part.data for part in parts] for parts in self.frames]
        self.keys: list[StoredKey] = []
        self._numbers = count()

    def new_keys(self) -> None:
        """What stood under those before is deleted, so that the same slots are written again."""
        if self.keys:
            self.tier.delete(self.keys)
        self.keys = self.take_keys(len(self.frames))

    def take_keys(self, count: int) -> list[StoredKey]:
        """Under which nothing was stored yet."""
        return [self._key(next(self._numbers)) for _ in range(count)]

    def put(self, keys: list[StoredKey]) -> None:
        """The first frames under these keys."""
        self.tier.write(keys, self._payloads[: len(keys)])

    def write(self, lot: slice, ticket: Ticket | None = None) -> None:
        self.tier.write(self.keys[lot], self._payloads[lot], ticket=ticket)

    def write_all(self, lot_bytes: int, at_a_time: int, *, in_place: bool = False) -> None:
        """As the mover does: so many lots under way, begun one after the other. `in_place`: new blocks, and
        what stood in a lot's frames before is deleted right before it is begun, as in a full tier."""
        lots, begins = iter(self.lots(lot_bytes)), threading.Lock()

        def run() -> None:
            while True:
                with begins:
                    lot = next(lots, None)
                    if lot is None:
                        return
                    if in_place:
                        self.tier.delete(self.keys[lot])
                        self.keys[lot] = self.take_keys(len(self.keys[lot]))
                    ticket = self.tier.tickets.take()
                with ticket:
                    self.write(lot, ticket)

        at_once([run] * at_a_time)

    def read(self, lot: slice) -> None:
        outcomes = self.tier.read(self.keys[lot], self.frames[lot])
        if any(outcome is not ReadOutcome.GOOD for outcome in outcomes):
            raise SystemExit(f"not what was written: {outcomes}")

    def lots(self, lot_bytes: int) -> list[slice]:
        blocks = max(1, lot_bytes // self.pool.frame_bytes)
        return [slice(start, start + blocks) for start in range(0, len(self.frames), blocks)]

    def _key(self, number: int) -> StoredKey:
        return StoredKey(
            namespace=NamespaceId(1),
            tenant=TenantId(1),
            key=BlockKey(sha256(number.to_bytes(8)).digest()),
            parent=BlockKey(b""),
            writer=WriterId(1),
        )


@contextmanager
def bench_tier(
    folder: Path, pool: HostPool, *, cap_bytes: int = CAP_BYTES, files: Files | None = None
) -> Iterator[TierBench]:
    """The pool is filled with random bytes."""
    pool.frames(0)[:] = np.random.default_rng(1).integers(0, 255, pool.frames(0).shape, np.uint8)
    tier = DiskTier.open(folder / "tier", cap_bytes, files=files)
    try:
        tier.names.namespace_id(b"b" * 32, pool.block_bytes, 16, pool.ranks, {})
        tier.names.tenant_id("bench")
        tier.names.writer_id("bench", "bench")
        tier.lay_out(pool.block_bytes, pool.ranks)
        yield TierBench(tier, pool)
    finally:
        tier.close()


def at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Each in a thread of its own."""
    faults: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
