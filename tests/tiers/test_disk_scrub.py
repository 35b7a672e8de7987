"""The scrub finds what has gone bad, tells it, and leaves all else alone."""

import queue
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from kvstore.core.types import StoredKey
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.files import DirectFiles
from tests.tiers.helpers import BLOCK, add_namespace, chain, change_bytes, open_tier, read, stored, write

SLOT = 12_288
FAST = 1 << 40
WAIT = 60.0


def names_of(keys) -> set[tuple[int, int, bytes]]:
    return {(key.namespace, key.tenant, key.key) for key in keys}


def rounds(tier: DiskTier) -> int:
    assert tier._scrub is not None
    return tier._scrub.rounds


def test_wrong_blocks_of_all_sizes_are_dropped_and_told(tmp_path: Path):
    with closing(open_tier(tmp_path)) as tier:
        write(tier, chain(900))
        other = add_namespace(tier.names, BLOCK - 1, 1, b"other")
        tier.lay_out(BLOCK - 1, 1)
        small = [stored(n, namespace=other) for n in range(10)]
        write(tier, small, BLOCK - 1)
    bad = [chain(900)[3], chain(900)[899], small[4]]
    for key in bad:
        change_bytes(tmp_path, key, SLOT, lambda value: b"?" + value[1:])
    told: queue.SimpleQueue[StoredKey] = queue.SimpleQueue()
    with closing(open_tier(tmp_path)) as tier:

        def tell(keys: Sequence[StoredKey]) -> None:
            for key in keys:
                told.put(key)

        tier.start_scrub(tell, FAST)
        assert names_of(told.get(timeout=WAIT) for _ in bad) == names_of(bad)
        while rounds(tier) == 0:
            time.sleep(0.001)
        assert told.empty()
        assert tier.counts.bad_entries == 3
        assert tier.held_blocks == 907
        write(tier, [bad[0]])
        assert read(tier, bad[0]) is not None


def test_blocks_that_come_and_go_meanwhile_are_not_taken_for_bad_ones(tmp_path: Path):
    told: list[StoredKey] = []
    with closing(open_tier(tmp_path, 4 << 20, 100_000)) as tier:
        tier.start_scrub(told.extend, FAST, 0.0)
        capacity = tier.capacity_blocks(100_000, 1)
        for turn in range(40):
            keys = [stored(n) for n in range(turn * capacity, (turn + 1) * capacity)]
            write(tier, keys, 100_000)
            tier.delete(keys)
        assert rounds(tier) > 0
    assert told == []
    assert tier.counts.bad_entries == 0


def test_a_degraded_disk_is_left_alone_and_a_stop_waits_for_nothing(tmp_path: Path):
    reads = threading.Event()

    class Counted(DirectFiles):
        def read(self, fd, parts, offset):
            reads.set()
            super().read(fd, parts, offset)

    with closing(open_tier(tmp_path, files=Counted())) as tier:
        write(tier, chain(3))
        tier._health.failed("I/O error")
        tier.start_scrub(lambda keys: None, FAST, 0.0)
        assert not reads.wait(0.05)
        assert tier.close(WAIT)
    with closing(open_tier(tmp_path)) as tier:
        tier.start_scrub(lambda keys: None, 1)
        assert tier.close(WAIT), "at a byte a second"
