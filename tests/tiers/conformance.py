"""What any tier must keep to that stores blocks durably, whatever lies beneath it.

To prove a tier: inherit from `BlockTierSuite`, say how one is opened on a folder, and get all tests. A class
whose device fails says so by `fails`: then a write may fail, whole, and a read may miss. What is read
must be right even so, and all that was answered must be there once the device is `healed`.
"""

import errno
import queue
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvstore.core.types import NamespaceId, TenantId
from kvstore.tiers.disk import DiskTier, DiskWriteFailed, ReadOutcome
from kvstore.tiers.files import Files
from tests.tiers.accounts import check_space, numbers_of
from tests.tiers.faults import BrokenFiles, HangingFiles
from tests.tiers.promises import bytes_of, stored_key
from tests.tiers.sized import CAP, Sizes, find_versions, folder_bytes, open_tier, read_one
from tests.tiers.workload import Silent, Workload

__all__ = ["BlockTierSuite", "BrokenDeviceSuite"]


class Clock:
    """Each look at it is a day later, so that what failed is tried again at once."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 86_400.0
        return self.now


class BlockTierSuite:
    fails = False

    def files(self) -> Files:
        """New ones for each time that a tier is opened."""
        raise NotImplementedError

    def heal(self) -> None:
        """From now on the device does what it is told."""

    # ----------------------------------------------------------------------- fixtures

    @pytest.fixture
    def sizes(self) -> Sizes:
        return Sizes(10_001, 2)

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "disk"

    @contextmanager
    def opened(self, folder: Path, sizes: Sizes, cap: int = CAP, **options: object) -> Iterator[DiskTier]:
        with closing(open_tier(folder, sizes, cap, self.files(), clock=Clock(), **options)) as tier:
            yield tier

    def written(self, tier: DiskTier, sizes: Sizes, versions: dict[int, int]) -> dict[int, int]:
        """One batch. What of it was stored: all, or where the device fails, perhaps nothing."""
        try:
            tier.write([stored_key(number) for number in versions], sizes.filled(versions))
        except DiskWriteFailed:
            assert self.fails
            return {}
        return versions

    def found(self, tier: DiskTier, sizes: Sizes, versions: dict[int, int]) -> dict[int, int]:
        """What is read of these. Where the device fails, once it doesn't any more."""
        possible = {number: {version} for number, version in versions.items()}
        if self.fails:
            during = find_versions(tier, sizes, possible)
            assert during.items() <= versions.items()
            self.heal()
        return find_versions(tier, sizes, possible)

    # -------------------------------------------------------------- reading and writing

    @pytest.mark.parametrize(
        ("block_bytes", "ranks"), [(1, 1), (4095, 1), (4096, 2), (10_001, 3), (368_640, 1)]
    )
    def test_what_is_read_is_what_was_written(self, folder: Path, block_bytes: int, ranks: int) -> None:
        sizes = Sizes(block_bytes, ranks)
        with self.opened(folder, sizes) as tier:
            kept = self.written(tier, sizes, {0: 1, 1: 2, 2: 3})
            assert self.found(tier, sizes, kept) == kept

    def test_what_was_never_written_is_a_miss(self, folder: Path, sizes: Sizes) -> None:
        with self.opened(folder, sizes) as tier:
            self.written(tier, sizes, {0: 1})
            assert find_versions(tier, sizes, {5: set(), 105: set()}) == {}

    def test_written_again_is_the_last_one_and_held_once(self, folder: Path, sizes: Sizes) -> None:
        with self.opened(folder, sizes) as tier:
            kept: dict[int, int] = {}
            for version in range(1, 6):
                kept |= self.written(tier, sizes, {0: version, 1: 10 + version})
            assert self.found(tier, sizes, kept) == kept
            check_space(tier)

    def test_deleted_is_gone_and_unknown_ones_are_passed_over(self, folder: Path, sizes: Sizes) -> None:
        with self.opened(folder, sizes) as tier:
            kept = self.written(tier, sizes, {0: 1, 1: 2, 2: 3})
            tier.delete([stored_key(number) for number in (2, 99, 1)])
            kept = {number: version for number, version in kept.items() if number == 0}
            assert self.found(tier, sizes, {0: 1, 1: 2, 2: 3}) == kept
            check_space(tier)

    def test_a_batch_is_stored_whole_or_not_at_all(self, folder: Path, sizes: Sizes) -> None:
        with self.opened(folder, sizes) as tier:
            kept: dict[int, int] = {}
            asked: dict[int, int] = {}
            for batch in range(12):
                versions = {100 * batch + place: 1 + batch for place in range(7)}
                asked |= versions
                kept |= self.written(tier, sizes, versions)
            assert self.found(tier, sizes, asked) == kept
            check_space(tier)

    def test_tenants_and_namespaces_see_nothing_of_each_other(self, folder: Path, sizes: Sizes) -> None:
        self.heal()
        with self.opened(folder, sizes) as tier:
            key = stored_key(0)
            tenant, namespace = replace(key, tenant=TenantId(2)), replace(key, namespace=NamespaceId(2))
            tier.write([key], sizes.filled({0: 1}))
            assert [read_one(tier, sizes, each) for each in (tenant, namespace)] == [None, None]
            tier.write([tenant, namespace], sizes.filled({0: 2, 1: 3}))
            tier.delete([key])
            assert read_one(tier, sizes, key) is None
            assert read_one(tier, sizes, tenant) == bytes_of(0, 2, sizes.all_bytes)
            assert read_one(tier, sizes, namespace) == bytes_of(1, 3, sizes.all_bytes)

    # ---------------------------------------------------------------------- the cap

    def test_the_cap_is_never_exceeded_and_full_is_said(self, folder: Path, sizes: Sizes) -> None:
        with self.opened(folder, sizes) as tier:
            capacity = tier.capacity_blocks(sizes.block_bytes, sizes.ranks)
            kept: dict[int, int] = {}
            while len(kept) < capacity:
                first = len(kept)
                kept |= self.written(tier, sizes, dict.fromkeys(range(first, min(first + 9, capacity)), 1))
                assert folder_bytes(folder) <= CAP
            self.heal()
            # A few slots are spare, so that a batch has a choice.
            spare = tier._layout.storage.space.free_count if tier._layout.storage is not None else 0
            assert spare <= capacity // 16
            kept |= self.written(tier, sizes, dict.fromkeys(range(capacity, capacity + spare), 1))
            self.heal()
            with pytest.raises(DiskWriteFailed, match="full"):
                tier.write([stored_key(90_000)], sizes.filled({90_000: 1}))
            assert folder_bytes(folder) <= CAP
            assert self.found(tier, sizes, kept) == kept
            check_space(tier)

    # --------------------------------------------------------------------- restarts

    def test_a_restart_finds_all_that_was_answered(self, folder: Path, sizes: Sizes) -> None:
        kept: dict[int, int] = {}
        for turn in range(3):
            with self.opened(folder, sizes) as tier:
                assert set(numbers_of(tier.found(sizes.all_bytes), kept)) == set(kept)
                for batch in range(3):
                    first = 1000 * turn + 100 * batch
                    kept |= self.written(tier, sizes, dict.fromkeys(range(first, first + 4), 1))
        with self.opened(folder, sizes) as tier:
            assert self.found(tier, sizes, kept) == kept
            check_space(tier)

    @pytest.mark.parametrize("life", range(2))
    def test_a_long_life_near_the_cap(self, folder: Path, sizes: Sizes, life: int) -> None:
        blocks: dict[int, int] = {}
        version = 1
        for turn in range(2):
            with self.opened(folder, sizes) as tier:
                work = Workload(tier, sizes, 10 * life + turn, Silent(), blocks, version)
                for _ in range(60):
                    work.step(reads=not self.fails)
                    assert folder_bytes(folder) <= CAP
                assert self.found(tier, sizes, work.blocks) == work.blocks
                check_space(tier)
                blocks, version = work.blocks, work.next_version


class BrokenDeviceSuite(BlockTierSuite):
    """And what must hold when a device that was good breaks down and comes back."""

    @pytest.mark.parametrize("kind", ["write", "sync", "create"])
    @pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
    def test_after_an_error_it_goes_on(self, folder: Path, sizes: Sizes, kind: str, code: int) -> None:
        files = BrokenFiles(self.files(), code)
        with closing(open_tier(folder, sizes, CAP, files, clock=Clock())) as tier:
            tier.write([stored_key(0)], sizes.filled({0: 1}))
            files.broken = {kind}
            capacity = tier.capacity_blocks(sizes.block_bytes, sizes.ranks)
            with pytest.raises(DiskWriteFailed):
                fill(tier, sizes, capacity)
            assert tier.degraded
            assert find_versions(tier, sizes, {0: {1}}) == {0: 1}
            files.broken = set()
            tier.write([stored_key(900)], sizes.filled({900: 2}))
            assert not tier.degraded
            check_space(tier)
        with self.opened(folder, sizes) as tier:
            assert find_versions(tier, sizes, {0: {1}, 900: {2}}) == {0: 1, 900: 2}

    def test_a_late_read_is_a_miss_and_its_frame_is_told_when_it_has_come_back(
        self, folder: Path, sizes: Sizes
    ) -> None:
        with self.opened(folder, sizes) as tier:
            tier.write([stored_key(0)], sizes.filled({0: 1}))
        files = HangingFiles(self.files())
        # Long enough for a busy machine to look into the index.
        with closing(open_tier(folder, sizes, CAP, files, deadline_seconds=2.0)) as tier:
            files.hang()
            back: queue.SimpleQueue[int] = queue.SimpleQueue()
            [outcome] = tier.read([stored_key(0)], sizes.frames(1), returned=back.put)
            assert outcome is ReadOutcome.LATE
            assert back.empty()
            files.release()
            assert back.get(timeout=30) == 0
        with self.opened(folder, sizes) as tier:
            assert find_versions(tier, sizes, {0: {1}}) == {0: 1}


def fill(tier: DiskTier, sizes: Sizes, capacity: int) -> None:
    """Until all of it is used, so that each segment has to be made."""
    for first in range(100, 100 + capacity - 1, 5):
        numbers = range(first, min(first + 5, 99 + capacity))
        tier.write([stored_key(n) for n in numbers], sizes.filled(dict.fromkeys(numbers, 1)))
