"""Events for those who watch: one bounded ring for all of them, and how far each has read.

Nothing is queued for anybody. A watcher reads where it stands when it can; where its next event has left the
ring meanwhile it is told so, and ends. So memory is bounded by the ring, whoever is slow.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager

from kvstore.core.errors import RevisionCompacted, check
from kvstore.core.notices import BlocksRemoved, BlocksStored, Happening, SequenceMoved
from kvstore.core.types import Revision
from kvstore.server.watchers import Watchers

__all__ = ["EventRing", "Events"]

WATCHERS_MAX = 64
# Keys and frames in all events of the ring count too. Of blocks that are there, keys are not held twice.
EVENTS_MAX = 16_384
ITEMS_MAX = 1 << 20
# In one message, of the first event more.
BATCH_EVENTS_MAX = 256
BATCH_ITEMS_MAX = 16_384


class EventRing:
    """The last events. Their revisions have no gap."""

    def __init__(self, events_max: int, items_max: int) -> None:
        self._events_max = events_max
        self._items_max = items_max
        self._events: dict[int, Happening] = {}
        self._items = 0
        # The oldest revision that is here, and the next that comes.
        self.first = 1
        self.next = 1

    def begin(self, revision: Revision) -> None:
        """Empty; what comes next is counted from this revision on."""
        self._events.clear()
        self._items = 0
        self.first = self.next = revision + 1

    def add(self, happened: Sequence[Happening]) -> None:
        for each in happened:
            check(each.revision == self.next, f"event {each.revision} in the place of {self.next}")
            self._events[self.next] = each
            self._items += _items(each)
            self.next += 1
        while len(self._events) > self._events_max or self._items > self._items_max:
            self._items -= _items(self._events.pop(self.first))
            self.first += 1

    def check_start(self, start: int) -> None:
        """Whether one who knows all before `start` can go on from there."""
        if not self.first <= start <= self.next:
            here = f"events {self.first} to {self.next - 1} are here"
            if self.first == self.next:
                here = f"no events are kept now, the next one is {self.next}"
            raise RevisionCompacted(
                here,
                field="start_revision",
                value=start,
                remedy="read GetUsage, then watch from now (start_revision 0)",
            )

    def read(self, start: int) -> list[Happening]:
        """What comes from there on, as much as goes into one message."""
        self.check_start(start)
        batch: list[Happening] = []
        items = 0
        for revision in range(start, min(self.next, start + BATCH_EVENTS_MAX)):
            items += _items(self._events[revision])
            if batch and items > BATCH_ITEMS_MAX:
                break
            batch.append(self._events[revision])
        return batch


class Events:
    """`is_on`: events are being told, or will be from the first on."""

    def __init__(self) -> None:
        self.is_on = False
        self._ring = EventRing(EVENTS_MAX, ITEMS_MAX)
        self._watchers = Watchers(WATCHERS_MAX)

    @property
    def watcher_count(self) -> int:
        return self._watchers.count

    def place(self) -> AbstractContextManager[None]:
        return self._watchers.place()

    def begin(self, revision: Revision) -> None:
        self.is_on = True
        self._ring.begin(revision)

    def end(self) -> None:
        self.is_on = False
        self._ring.begin(Revision(self._ring.next - 1))

    def add(self, happened: Sequence[Happening]) -> None:
        self._ring.add(happened)
        self._watchers.wake()

    async def read(self, start: int) -> AsyncGenerator[tuple[int, list[Happening]], None]:
        """Batches and the revision that each goes up to, an empty one first. `start` 0: from now on."""
        start = start or self._ring.next
        self._ring.check_start(start)
        yield start - 1, []
        while True:
            batch = self._ring.read(start)
            if batch:
                start += len(batch)
                yield start - 1, batch
            else:
                await self._watchers.change()

    def close(self) -> None:
        """Whoever watches gets what is there, and ends."""
        self._watchers.close()


def _items(happening: Happening) -> int:
    match happening:
        case BlocksStored() | BlocksRemoved():
            return len(happening.keys)
        case SequenceMoved():
            return len(happening.block_table)
    return 0
