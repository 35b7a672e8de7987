"""The disk tier on a device in virtual time: a read waits for one write in service and for no other."""

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from bench.virtual_device import VirtualDevice
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.disk_io import READS_PER_WRITE, IoKind
from kvstore.tiers.files import DirectFiles
from tests.tiers.promises import stored_key
from tests.tiers.sized import Sizes, find_versions, open_tier

# A piece holds one of them, so that each block is a write of its own.
SIZES = Sizes((2 << 20) + 1, 1)
CAP = 256 << 20
WRITERS = 8
BLOCKS = 5
SECONDS_MAX = 30


def device() -> VirtualDevice:
    return VirtualDevice(DirectFiles(), bytes_a_second=1e9, fixed_seconds=1e-4, sync_seconds=1e-3)


def wait_until_queued(tier: DiskTier, kind: IoKind, count: int) -> None:
    end = time.monotonic() + SECONDS_MAX
    while len(tier._threads._queues[kind]) < count:
        assert time.monotonic() < end, f"{len(tier._threads._queues[kind])} wait"
        time.sleep(0.005)


def test_a_busy_device_takes_the_time_that_it_takes(tmp_path: Path) -> None:
    files = device()
    with closing(open_tier(tmp_path / "disk", SIZES, CAP, files)) as tier:
        tier.write([stored_key(0)], SIZES.filled({0: 1}))
        assert find_versions(tier, SIZES, {0: {1}}) == {0: 1}
    kinds = [each.kind for each in files.served]
    assert kinds == ["write", "sync", "read"]
    share = 1e-4 + SIZES.stride_bytes / 1e9
    assert files.now == pytest.approx(2 * share + 1e-3)


def test_case_6_18_a_read_waits_for_one_write_of_many_and_these_get_on(tmp_path: Path) -> None:
    files = device()
    batches = [{1000 * writer + place: 1 for place in range(BLOCKS)} for writer in range(1, WRITERS + 1)]
    with closing(open_tier(tmp_path / "disk", SIZES, CAP, files, deadline_seconds=SECONDS_MAX)) as tier:
        tier.write([stored_key(0)], SIZES.filled({0: 1}))
        begin = files.now
        assert find_versions(tier, SIZES, {0: {1}}) == {0: 1}
        unloaded = files.now - begin
        # Once before, so that the segments are there.
        for batch in batches:
            tier.write([stored_key(n) for n in batch], SIZES.filled(batch))
        for batch in batches:
            tier.delete([stored_key(n) for n in reversed(batch)])

        files.pause()
        writers = [
            threading.Thread(
                target=tier.write, args=([stored_key(n) for n in batch], SIZES.filled(batch)), daemon=True
            )
            for batch in batches
        ]
        for writer in writers:
            writer.start()
        files.wait_for_service("write")
        # Each writer has a few pieces in the queue at once, and waits for these.
        wait_until_queued(tier, IoKind.WRITE, 2 * WRITERS)
        begin, before = files.now, len(files.served)
        found: list[dict[int, int]] = []
        reader = threading.Thread(
            target=lambda: found.append(find_versions(tier, SIZES, {0: {1}})), daemon=True
        )
        reader.start()
        files.wait_for_arrival("read")
        files.resume()
        reader.join(SECONDS_MAX)
        for writer in writers:
            writer.join(SECONDS_MAX)
        served = files.served[before:]
        place = [each.kind for each in served].index("read")
        assert found == [{0: 1}]
        assert [each.kind for each in served[:place] if each.kind == "write"] == ["write"]
        service = 1e-4 + SIZES.stride_bytes / 1e9
        assert served[place].end - begin <= unloaded + service + 1e-9
        assert sum(each.kind == "write" for each in served) == WRITERS * BLOCKS > READS_PER_WRITE
        assert all(find_versions(tier, SIZES, {n: {1} for n in batch}) == batch for batch in batches)
