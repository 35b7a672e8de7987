"""A full tier that lives on: twenty times the cap written to it, by sessions of all lengths that come back and end."""

import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from kvstore.tiers.files import DirectFiles, Files
from tests.tiers.accounts import check_space
from tests.tiers.faults import PassedOn
from tests.tiers.power import fast_folder
from tests.tiers.promises import stored_key
from tests.tiers.sized import Sizes, find_versions, folder_bytes, open_tier
from tests.tiers.workload import CHAIN

CAP = 8 << 20
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
    """Chains of blocks that grow by turns. When room is short the one goes that was longest not used, from its
    end, as the core has it."""

    def __init__(self, seed: int, capacity: int) -> None:
        self.lengths: dict[int, int] = {}
        self._capacity = capacity
        self._chance = random.Random(seed)
        self._next = 0

    def turn(self) -> tuple[list[int], list[int]]:
        """The blocks of the next turn, and those that go for them."""
        if self.lengths and self._chance.random() < 0.5:
            chain = self._chance.choice(sorted(self.lengths))
        else:
            chain, self._next = self._next, self._next + 1
        length = self.lengths.pop(chain, 0)
        count = min(self._chance.randint(1, BATCH), CHAIN - length)
        gone: list[int] = []
        while sum(self.lengths.values()) + length + count > self._capacity:
            oldest = next(iter(self.lengths))
            left = self.lengths[oldest] - 1
            gone.append(oldest * CHAIN + left)
            self.lengths[oldest] = left
            if not left:
                del self.lengths[oldest]
        self.lengths[chain] = length + count
        return [chain * CHAIN + place for place in range(length, length + count)], gone


def test_case_6_07_twenty_times_the_cap_later_a_put_costs_what_it_did() -> None:
    """In calls of the device and bytes, which a busy machine does not change; and the cap holds at every moment."""
    files = Counting(DirectFiles())
    costs: list[tuple[int, float, float]] = []
    with fast_folder() as scratch, closing(open_tier(scratch / "disk", SIZES, CAP, files)) as tier:
        capacity = tier.capacity_blocks(SIZES.block_bytes, SIZES.ranks)
        sessions = Sessions(1, capacity)
        written = 0
        while written < TIMES * capacity:
            new, gone = sessions.turn()
            if not new:
                continue
            if gone:
                tier.delete([stored_key(number) for number in gone])
            assert folder_bytes(scratch / "disk") <= CAP
            files.start()
            tier.write([stored_key(number) for number in new], SIZES.filled(dict.fromkeys(new, 1)))
            assert folder_bytes(scratch / "disk") <= CAP
            costs.append((written, files.calls / 1, files.bytes / len(new)))
            written += len(new)
        held = {c * CHAIN + place: {1} for c, length in sessions.lengths.items() for place in range(length)}
        assert set(find_versions(tier, SIZES, held)) == set(held)
        check_space(tier)
        assert not tier.degraded
    fresh = [(calls, bytes_) for at, calls, bytes_ in costs if at < capacity]
    late = [(calls, bytes_) for at, calls, bytes_ in costs if at > (TIMES - 4) * capacity]
    for place in range(2):
        before, after = (np.percentile([cost[place] for cost in some], 99) for some in (fresh, late))
        print(place, len(fresh), len(late), before, after, [np.percentile([cost[place] for cost in some], 50) for some in (fresh, late)])
        assert after <= 3 * before
