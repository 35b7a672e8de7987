"""Devices without room, for segments or for the index: writes stop, reads and deletes go on, and it heals.

A real file system of 64 MiB is used where one can be mounted, in a name space of its own; and everywhere the
seam to the files says that there is no room, and for the index the kernel does.
"""

import contextlib
import json
import mmap
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kvstore.tiers.disk import DiskTier, DiskWriteFailed
from kvstore.tiers.disk_environment import DATA_FILE
from kvstore.tiers.files import DirectFiles
from tests.tiers import full_worker
from tests.tiers.accounts import check_space
from tests.tiers.conformance import Clock
from tests.tiers.faults import FullFiles
from tests.tiers.helpers import files_at_most
from tests.tiers.promises import stored_key
from tests.tiers.sized import CAP, Sizes, find_versions, folder_bytes, open_tier

SIZES = Sizes(30_000, 1)
SECONDS_MAX = 100


def write(tier: DiskTier, numbers: range) -> dict[int, int]:
    versions = dict.fromkeys(numbers, 1)
    tier.write([stored_key(number) for number in numbers], SIZES.filled(versions))
    return versions


def test_case_5_12_a_full_tmpfs_degrades_and_serves(tmp_path: Path) -> None:
    """The process lives, which with a map that is written to it would not (SIGBUS)."""
    mounted = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=64m none {tmp_path}"
    if not shutil.which("unshare") or subprocess.run([*mounted, mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here; the test after this one needs none")
    program = f"{mount} && exec {sys.executable} -m {full_worker.__name__} {tmp_path}"
    done = subprocess.run([*mounted, program], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert "No space left" in said["segments"]
    assert said["degraded"]
    assert said["kept"] > 80
    assert said["whole"]
    assert said["index"], "the index was to meet a full device too"
    assert said["index_whole"]
    assert said["healed"] == ""
    assert not said["degraded_after"]
    assert (said["found"], said["found_whole"]) == (said["expected"], True)


def test_case_5_12_no_space_for_segments_degrades_and_serves(tmp_path: Path) -> None:
    files = FullFiles(DirectFiles(), CAP // 2)
    with closing(open_tier(tmp_path / "disk", SIZES, CAP, files, clock=Clock())) as tier:
        kept: dict[int, int] = {}
        with contextlib.suppress(DiskWriteFailed):
            for first in range(0, 100_000, 100):
                kept |= write(tier, range(first, first + 5))
        assert tier.degraded
        assert "No space left" in tier.degraded_reason
        assert find_versions(tier, SIZES, {number: {1} for number in kept}) == kept
        check_space(tier)
        # Room inside: what goes makes it, though the device is as full as it was.
        tier.delete([stored_key(number) for number in range(5)])
        kept = {number: 1 for number in kept if number >= 5} | write(tier, range(90_000, 90_005))
        assert not tier.degraded
        files.budget_bytes = CAP
        kept |= write(tier, range(91_000, 91_005))
        assert find_versions(tier, SIZES, {number: {1} for number in kept}) == kept
        check_space(tier)


def test_case_5_12_no_space_for_the_index_degrades_and_serves(tmp_path: Path) -> None:
    """The kernel lets no file grow beyond what the index is already, as a full device would not."""
    with closing(open_tier(tmp_path / "disk", SIZES, CAP, clock=Clock())) as tier:
        kept = write(tier, range(5))
        first = 100
        with files_at_most((tmp_path / "disk" / DATA_FILE).stat().st_size):
            failed: list[str] = []
            for first in range(100, 4_000, 100):
                try:
                    kept |= write(tier, range(first, first + 5))
                except DiskWriteFailed as error:
                    failed.append(str(error))
                    if len(failed) > 3:
                        break
            assert failed
            assert tier.degraded
            assert find_versions(tier, SIZES, {number: {1} for number in kept}) == kept
        kept |= write(tier, range(first + 100, first + 105))
        assert not tier.degraded
        check_space(tier)
    with closing(open_tier(tmp_path / "disk", SIZES)) as tier:
        assert find_versions(tier, SIZES, {number: {1} for number in kept}) == kept


def test_case_5_14_a_full_tier_still_deletes(tmp_path: Path) -> None:
    """Slots all taken, and the index at the end of its map: what is deleted makes room, at once or soon."""
    with closing(open_tier(tmp_path / "disk", SIZES, clock=Clock())) as tier:
        assert tier._layout.storage is not None
        # All slots, also the spare ones that no block is meant for.
        capacity = tier._layout.storage.space.slot_count
        assert capacity > tier.capacity_blocks(SIZES.block_bytes, SIZES.ranks)
        kept: dict[int, int] = {}
        for first in range(0, capacity, 10):
            kept |= write(tier, range(first, min(first + 10, capacity)))
        with pytest.raises(DiskWriteFailed, match="full"):
            write(tier, range(90_000, 90_001))
        tier._table._env.set_mapsize((tmp_path / "disk" / DATA_FILE).stat().st_size)
        for last in range(capacity, capacity - 50, -5):
            tier.delete([stored_key(number) for number in range(last - 5, last)])
        kept = {number: 1 for number in kept if number < capacity - 50}
        for turn in range(5):
            kept |= write(tier, range(91_000 + 100 * turn, 91_005 + 100 * turn))
        assert find_versions(tier, SIZES, {number: {1} for number in kept}) == kept
        assert tier.held_blocks == len(kept)
        check_space(tier)


def test_case_5_14_a_map_that_is_full_for_good_fails_writes_and_nothing_else(tmp_path: Path) -> None:
    """No page is left, and none comes free, since somebody reads: as case 5.11, and at the end of the map."""
    with closing(open_tier(tmp_path / "disk", SIZES, clock=Clock())) as tier:
        kept = write(tier, range(40))
        tier._table._env.set_mapsize((tmp_path / "disk" / DATA_FILE).stat().st_size + 16 * mmap.PAGESIZE)
        with tier._table._env.begin():
            failed: list[str] = []
            for first in range(100, 3_000, 100):
                try:
                    kept |= write(tier, range(first, first + 1))
                except DiskWriteFailed as error:
                    failed.append(str(error))
            assert failed
            assert all("MapFull" in reason for reason in failed)
            assert tier.degraded
            assert find_versions(tier, SIZES, {number: {1} for number in kept}) == kept
            assert folder_bytes(tmp_path / "disk") <= CAP
        tier.delete([stored_key(39)])
        kept.pop(39)
        for _ in range(4):  # Pages come free two transactions later.
            with contextlib.suppress(DiskWriteFailed):
                kept |= write(tier, range(91_000, 91_001))
        assert not tier.degraded
        assert find_versions(tier, SIZES, {number: {1} for number in kept}) == kept
        check_space(tier)
