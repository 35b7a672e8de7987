"""A full tier that lives on: twenty times the cap written to it, by sessions of all lengths."""

import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from msgspec import Struct

from kvstore.tiers.disk_deleting import DELETE_MAX
from kvstore.tiers.disk_environment import DATA_FILE
from kvstore.tiers.files import DirectFiles, Files
from tests.tiers.accounts import check_space
from tests.tiers.faults import PassedOn
from tests.tiers.power import fast_folder
from tests.tiers.promises import CHAIN, stored_key
from tests.tiers.sized import Sizes, find_versions, folder_bytes, open_tier

CAP = 5 << 20
SIZES = Sizes(20_000, 1)
TIMES = 20
BATCH = 8


class Counting(PassedOn):
    """What reached the device since `start`."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.start()

    def start(self) -> None:
        self.calls = self.bytes = 0

    def write(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        self.calls += 1
        self.bytes += sum(part.nbytes for part in parts)
        super().write(fd, parts, offset)

    def sync(self, fd: int) -> None:
        self.calls += 1
        super().sync(fd)

    def create(self, path: Path, size_bytes: int) -> int:
        self.calls += 1
        return super().create(path, size_bytes)


class Sessions:
    """Chains of blocks that grow by turns. When room is short that one goes which was not used for longest,
    from its end, as the core has it."""

    def __init__(self, seed: int, capacity: int) -> None:
        self.lengths: dict[int, int] = {}
        self.capacity = capacity
        self._chance = random.Random(seed)
        self._next = 0

    def blocks(self) -> set[int]:
        return {chain * CHAIN + place for chain, length in self.lengths.items() for place in range(length)}

    def turn(self) -> tuple[list[int], list[int]]:
        """The blocks of the next turn, and those that go for them."""
        if self.lengths and self._chance.random() < 0.5:
            chain = self._chance.choice(sorted(self.lengths))
        else:
            chain, self._next = self._next, self._next + 1
        length = self.lengths.pop(chain, 0)
        count = min(self._chance.randint(1, BATCH), CHAIN - length)
        gone: list[int] = []
        while sum(self.lengths.values()) + length + count > self.capacity:
            oldest = next(iter(self.lengths))
            left = self.lengths[oldest] - 1
            gone.append(oldest * CHAIN + left)
            self.lengths[oldest] = left
            if not left:
                del self.lengths[oldest]
        self.lengths[chain] = length + count
        return [chain * CHAIN + place for place in range(length, length + count)], gone


class Cost(Struct, frozen=True, kw_only=True):
    """Of a put: blocks written before it, calls of the device, bytes a block, the index file behind it."""

    before: int
    calls: int
    block_bytes: float
    index_bytes: int


@pytest.fixture(scope="module")
def costs() -> list[Cost]:
    """The cap holds at every moment of it, and at its end all is there that should be."""
    files = Counting(DirectFiles())
    costs: list[Cost] = []
    with fast_folder() as scratch, closing(open_tier(scratch / "disk", SIZES, CAP, files)) as tier:
        sessions = Sessions(1, tier.capacity_blocks(SIZES.block_bytes, SIZES.ranks))
        written = 0
        while written < TIMES * sessions.capacity:
            new, gone = sessions.turn()
            if gone:
                tier.delete([stored_key(number) for number in gone])
            assert folder_bytes(scratch / "disk") <= CAP
            files.start()
            tier.write([stored_key(number) for number in new], SIZES.filled(dict.fromkeys(new, 1)))
            index_bytes = (scratch / "disk" / DATA_FILE).stat().st_size
            share = files.bytes / max(1, len(new))
            costs.append(Cost(before=written, calls=files.calls, block_bytes=share, index_bytes=index_bytes))
            assert folder_bytes(scratch / "disk") <= CAP
            written += len(new)
        assert (
            find_versions(tier, SIZES, {number: {1} for number in sessions.blocks()}).keys()
            == sessions.blocks()
        )
        check_space(tier)
        assert not tier.degraded
        assert tier.counts.delete_errors == tier.counts.write_errors == 0
    return costs


def fresh_and_late(costs: list[Cost]) -> tuple[list[Cost], list[Cost]]:
    capacity = costs[-1].before / TIMES
    return [cost for cost in costs if cost.before < capacity], [
        cost for cost in costs if cost.before > (TIMES - 4) * capacity
    ]


def test_case_6_07_after_twenty_times_the_cap_a_put_costs_what_it_did(costs: list[Cost]) -> None:
    """In calls and bytes, which a busy machine does not change."""
    fresh, late = fresh_and_late(costs)
    assert len(late) > 3 * len(fresh) > 100
    for share, times in ((50, 2.5), (99, 2.5)):
        calls = [np.percentile([cost.calls for cost in some], share) for some in (fresh, late)]
        assert calls[1] <= times * calls[0]
    block_bytes = [np.percentile([cost.block_bytes for cost in some], 99) for some in (fresh, late)]
    assert block_bytes[1] <= block_bytes[0] <= 1.05 * SIZES.stride_bytes


def test_case_6_08_the_index_does_not_grow_with_what_is_deleted(costs: list[Cost]) -> None:
    """Pages that a transaction frees are used again; their list stays short."""
    fresh, late = fresh_and_late(costs)
    assert late[-1].index_bytes <= 2 * fresh[-1].index_bytes
    assert DELETE_MAX <= 1024, "blocks deleted in one transaction have a bound"
