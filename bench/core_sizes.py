"""What `bench.core` measures at a million blocks: the core's memory, and a start from a full disk.

Each in a process of its own, so that one does not find the other's memory.
"""

import tracemalloc
from pathlib import Path
from time import perf_counter

from bench.driven import BLOCK_TOKENS, Driven, random_keys
from kvstore.core.config import StoreConfig
from kvstore.core.events import BlocksFound
from kvstore.core.store import Store
from kvstore.core.types import BlockKey, StoredKey, TenantId, WriterId
from kvstore.policy.eviction import Lru
from kvstore.policy.swap import LengthThreshold
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.disk_dump import check_index

__all__ = ["make_disk", "memory_per_block", "seconds_to_start"]

CHAIN_BLOCKS = 1_000
# As small as a block can be: what counts here are the entries.
STORED_BYTES = 16
# By the tier's own reckoning each takes a page; the file is far smaller.
CAP_BYTES_PER_BLOCK = 6_144


def memory_per_block(blocks: int, eviction: str) -> float:
    """What the core holds, in bytes, when each of its frames is a cached block that can be found."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    driven = Driven(blocks, eviction)
    for _ in range(blocks // CHAIN_BLOCKS):
        driven.cache(random_keys(CHAIN_BLOCKS))
    driven.seconds(driven.step())
    after, _ = tracemalloc.get_traced_memory()
    indexed = int(driven.store.memory.blocks.indexed.sum())
    if indexed != blocks:
        raise RuntimeError(f"{indexed} blocks are indexed, not {blocks}")
    return (after - before) / blocks


def make_disk(folder: Path, blocks: int) -> None:
    """A disk tier with so many blocks, in chains."""
    disk = DiskTier.open(folder, _cap(blocks))
    disk.lay_out(STORED_BYTES, 1)
    namespace = disk.names.namespace_id(b"f" * 32, STORED_BYTES, BLOCK_TOKENS, 1, {"model": "bench"})
    payload = [memoryview(bytes(STORED_BYTES))]
    for _ in range(blocks // CHAIN_BLOCKS):
        keys = random_keys(CHAIN_BLOCKS)
        stored = [
            StoredKey(namespace=namespace, tenant=TenantId(1), key=key, parent=parent, writer=WriterId(1))
            for key, parent in zip(keys, (BlockKey(b""), *keys), strict=False)
        ]
        disk.write(stored, [payload] * CHAIN_BLOCKS)
    disk.close()


def seconds_to_start(folder: Path, blocks: int) -> tuple[float, float, float]:
    """From a closed disk to blocks that can be found: checked, opened and read, and told to the core."""
    start = perf_counter()
    check_index(folder)
    checked = perf_counter()
    disk = DiskTier.open(folder, _cap(blocks))
    disk.lay_out(STORED_BYTES, 1)
    found = disk.found(STORED_BYTES)
    opened = perf_counter()
    config = StoreConfig(
        block_tokens=BLOCK_TOKENS, gpu_frames=blocks // 8, cpu_frames=blocks // 8, disk_frames=blocks
    )
    store = Store(config, Lru(), LengthThreshold(8 * BLOCK_TOKENS))
    store.handle(BlocksFound(time=0.0, blocks=found))
    end = perf_counter()
    disk.close()
    if len(found) != blocks:
        raise RuntimeError(f"{len(found)} blocks found of {blocks}")
    return checked - start, opened - checked, end - opened


def _cap(blocks: int) -> int:
    return max(64 << 20, blocks * CAP_BYTES_PER_BLOCK)
