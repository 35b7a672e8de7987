"""What waits for a link between two neighbouring tiers, by urgency.

Each urgency has a lane of its own on its link, with transfers of its own under way: so what an engine
asked for never stands behind what the store does by itself.

A lane holds rows, not promises: what is to be done for a row is read off its replicas when its turn
comes, and a row that needs nothing any more (freed, evicted, moved by another) is passed over. So
nothing has to be taken out of a lane. A row stands in it once at the most.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable

import numpy as np

from kvstore.core.blocks import Rows
from kvstore.core.config import StoreConfig
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

    def __init__(self, link: Link, urgency: Urgency, under_way_max: int, blocks_max: int) -> None:
        """`blocks_max`: of one transfer."""
        self.link = link
        self.urgency = urgency
        self.under_way_max = under_way_max
        self.blocks_max = blocks_max
        self.under_way = 0
        self.rows: OrderedDict[int, None] = OrderedDict()
        # Rows were put back: nothing is tried again before something has changed.
        self.stalled = False
        # One has failed, and those that were begun before that was known may hang on it: they end first.
        self.must_empty = False

    def add(self, rows: Iterable[int]) -> None:
        """Rows that wait already keep their place."""
        self.rows.update(dict.fromkeys(rows))

    def ask(self, rows: Iterable[int]) -> None:
        """Somebody waits for these."""
        self.add(rows)
        self.stalled = False

    def take(self, count: int) -> Rows:
        """The next rows."""
        rows = self.rows
        return np.array([rows.popitem(last=False)[0] for _ in range(min(count, len(rows)))], np.intp)

    def put_back(self, rows: Rows) -> None:
        """These find no room now."""
        if rows.size:
            for row in rows[::-1].tolist():
                self.rows[row] = None
                self.rows.move_to_end(row, last=False)
            self.stalled = True

    @property
    def may_begin(self) -> bool:
        """Whether something waits that could be begun now."""
        may = not self.stalled and not self.must_empty
        return bool(self.rows) and may and self.under_way < self.under_way_max


Lanes = dict[tuple[Link, Urgency], Lane]


def make_lanes(config: StoreConfig) -> Lanes:
    """What nobody has asked for yet goes one at a time: it holds few frames while it is on its way."""
    lanes: Lanes = {}
    for link, urgency in ORDER:
        if link == WRITE:
            blocks_max = config.write_blocks_max or config.transfer_blocks_max
            lanes[link, urgency] = Lane(link, urgency, config.writes_max, blocks_max)
        else:
            most = 1 if urgency is PREFETCH else config.transfers_per_link_max
            lanes[link, urgency] = Lane(link, urgency, most, config.transfer_blocks_max)
    return lanes


def blocks_in_flight_max(config: StoreConfig) -> int:
    """Under way in one link at once, of all urgencies."""
    by_link: Counter[Link] = Counter()
    for lane in make_lanes(config).values():
        by_link[lane.link] += lane.under_way_max * lane.blocks_max
    return max(by_link.values())
