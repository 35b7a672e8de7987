"""What waits for a link between two neighbouring tiers, by urgency.

Each urgency has a lane of its own on its link, with transfers of its own under way: so what an engine
asked for never stands behind what the store does by itself.

A lane holds rows, not promises: what is to be done for a row is read off its replicas when its turn
comes, and a row that needs nothing any more (freed, evicted, moved by another) is passed over. So
nothing has to be taken out of a lane. A row stands in it once at the most. Where tenants share, each has a
queue of its own there (`queues.py`).
"""

from collections import Counter, OrderedDict
from collections.abc import Collection

import numpy as np

from kvstore.core.blocks import Rows
from kvstore.core.config import StoreConfig
from kvstore.core.queues import Queues
from kvstore.core.shares import Shares
from kvstore.core.types import (
    ASKED,
    BACKGROUND,
    COPY,
    LOAD,
    NEEDED,
    PREFETCH,
    READ,
    WRITE,
    Link,
    Urgency,
)

__all__ = ["ORDER", "Lane", "Lanes", "blocks_in_flight_max", "make_lanes"]

# Ways up first: a waiting engine's load is not held up by room that a way down takes. LOAD passes
# on to READ what the CPU tier does not have, and READ back to LOAD what it has meanwhile.
ORDER: tuple[tuple[Link, Urgency], ...] = (
    (LOAD, ASKED),
    (READ, ASKED),
    (LOAD, ASKED),
    (COPY, NEEDED),
    (LOAD, PREFETCH),
    (READ, PREFETCH),
    (LOAD, PREFETCH),
    (COPY, BACKGROUND),
    (WRITE, BACKGROUND),
)


class Lane:
    """Rows of one urgency that wait for one link, and how many transfers they have under way."""

    def __init__(
        self, link: Link, urgency: Urgency, under_way_max: int, blocks_max: int, shares: Shares
    ) -> None:
        """`blocks_max`: of one transfer."""
        self.link = link
        self.urgency = urgency
        self.under_way_max = under_way_max
        self.blocks_max = blocks_max
        self.under_way = 0
        # In the order in which they came, with the places of their tenants.
        self.rows: OrderedDict[int, int] = OrderedDict()
        self._queues = Queues(shares, self.rows) if shares.are_shared else None
        # Places of tenants of whom rows were put back: nothing of theirs is tried again before something
        # has changed.
        self.stalled: set[int] = set()
        # One has failed, and those that were begun before that was known may hang on it: they end first.
        self.must_empty = False

    def add(self, rows: Collection[int]) -> None:
        """Rows that wait already keep their place."""
        if self._queues is None:
            self.rows.update(dict.fromkeys(rows, 0))
        elif rows:
            self._queues.add(rows)

    def ask(self, rows: Collection[int]) -> None:
        """Somebody waits for these."""
        self.add(rows)
        self.resume()

    def take(self, count: int) -> Rows:
        """The next rows."""
        if self._queues is not None:
            return np.array(self._queues.take(count, self.stalled), np.intp)
        rows = self.rows
        return np.array([rows.popitem(last=False)[0] for _ in range(min(count, len(rows)))], np.intp)

    def put_back(self, rows: Rows) -> None:
        """These find no room now."""
        if not rows.size:
            return
        if self._queues is not None:
            self.stalled |= self._queues.put_back(rows.tolist())
            return
        for row in rows[::-1].tolist():
            self.rows[row] = 0
            self.rows.move_to_end(row, last=False)
        self.stalled.add(0)

    def give_up(self, count: int) -> list[int]:
        """Rows that do not wait any more, the last ones; fewer where there are not so many."""
        if self._queues is not None:
            return self._queues.give_up(count)
        return [self.rows.popitem()[0] for _ in range(min(count, len(self.rows)))]

    def resume(self) -> None:
        """Room that was lacking may be there."""
        self.stalled.clear()

    @property
    def may_begin(self) -> bool:
        """Whether something waits that could be begun now."""
        if not self.rows or self.must_empty or self.under_way >= self.under_way_max:
            return False
        return not self.stalled or (self._queues is not None and self._queues.waits_beside(self.stalled))

    @property
    def is_in_step(self) -> bool:
        """Whether each row stands in the queue of its tenant, and in no other."""
        return self._queues is None or self._queues.check()


Lanes = dict[tuple[Link, Urgency], Lane]


def make_lanes(config: StoreConfig, shares: Shares) -> Lanes:
    return {place: Lane(*place, *_bounds(config, *place), shares) for place in ORDER}


def blocks_in_flight_max(config: StoreConfig) -> int:
    """Under way in one link at once, of all urgencies."""
    by_link: Counter[Link] = Counter()
    for link, urgency in dict.fromkeys(ORDER):
        under_way_max, blocks_max = _bounds(config, link, urgency)
        by_link[link] += under_way_max * blocks_max
    return max(by_link.values())


def _bounds(config: StoreConfig, link: Link, urgency: Urgency) -> tuple[int, int]:
    """Transfers under way, and blocks of each. What nobody has asked for yet goes one at a time: it holds
    few frames while it is on its way."""
    if link == WRITE:
        return config.writes_max, config.write_blocks_max or config.transfer_blocks_max
    most = 1 if urgency is PREFETCH else config.transfers_per_link_max
    return most, config.transfer_blocks_max
