"""S3-FIFO (Yang and others, SOSP 2023): three queues, and up to two bits of uses for each block.

New blocks pass a small queue; what was used more than once there goes on to the main one, the rest is evicted
and its hash remembered for a while: what comes back in that time goes to the main queue at once. There a
block that was used goes round again, with one use less.

What is in use keeps its place in the queues, and is passed over.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import chain

from kvstore.core.types import Rows
from kvstore.policy.classic import Classic

__all__ = ["S3Fifo"]

# The small queue's share of a tier; how high uses are counted; above how many a block leaves it for the main
# one.
SMALL_SHARE = 0.1
USES_MAX = 3
USES_SMALL = 1


class S3Fifo(Classic):
    def __init__(self, capacities: Sequence[int]) -> None:
        """In frames, of each tier there is."""
        self._tiers = tuple(_Queues(capacity) for capacity in capacities)


class _Queues:
    def __init__(self, capacity: int) -> None:
        self._small_size = max(1, int(capacity * SMALL_SHARE))
        self._main_size = max(1, capacity - self._small_size)
        # By row, the first to go first: how often it was used since it came to the queue.
        self._small: OrderedDict[int, int] = OrderedDict()
        self._main: OrderedDict[int, int] = OrderedDict()
        # Hashes of what was evicted from the small queue.
        self._gone: OrderedDict[int, None] = OrderedDict()
        # By row in a queue: the hash of its block. Rows in use, which are not to be evicted.
        self._hash: dict[int, int] = {}
        self._away: set[int] = set()

    def touch(self, blocks: Iterator[tuple[int, int]]) -> None:
        for row, hashed in blocks:
            self._away.discard(row)
            if self._hash.get(row) == hashed:
                queue = self._small if row in self._small else self._main
                queue[row] = min(USES_MAX, queue[row] + 1)
                continue
            self._small.pop(row, None)
            self._main.pop(row, None)
            queue = self._main if hashed in self._gone else self._small
            self._gone.pop(hashed, None)
            queue[row], self._hash[row] = 0, hashed

    def forget(self, rows: Rows) -> None:
        self._away.update(row for row in rows.tolist() if row in self._hash)

    def evicted(self, blocks: Iterator[tuple[int, int]]) -> None:
        """The queues move on, as `order` has said, until all these are out of them."""
        going = {row for row, _ in blocks}
        stays: list[tuple[OrderedDict[int, int], int, int]] = []
        while going:
            is_small = self._small and (len(self._small) >= self._small_size or not self._main)
            queue = self._small if is_small else self._main
            row, uses = queue.popitem(last=False)
            if is_small and uses > USES_SMALL:
                self._main[row] = 0
            elif not is_small and uses:
                self._main[row] = uses - 1
            elif row not in going:
                stays.append((queue, row, uses))
            else:
                going.remove(row)
                hashed = self._hash.pop(row)
                if is_small:
                    self._gone[hashed] = None
        for queue, row, uses in reversed(stays):
            queue[row] = uses
            queue.move_to_end(row, last=False)
        while len(self._gone) > self._main_size:
            self._gone.popitem(last=False)

    def order(self) -> Iterator[int]:
        """As if each that is named were evicted at once. Draws from the queues no more than it is asked
        for."""
        moved: deque[tuple[int, int]] = deque()
        small, main = iter(self._small.items()), chain(self._main.items(), _drained(moved))
        in_small = len(self._small)
        left_in_main = len(self._main)
        while in_small or left_in_main:
            if in_small and (in_small >= self._small_size or not left_in_main):
                row, uses = next(small)
                in_small -= 1
                goes_round = uses > USES_SMALL
                uses = 0
            else:
                row, uses = next(main)
                left_in_main -= 1
                goes_round = uses > 0
                uses -= 1
            if goes_round:
                moved.append((row, uses))
                left_in_main += 1
            elif row not in self._away:
                yield row


def _drained(queue: deque[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    while queue:
        yield queue.popleft()
