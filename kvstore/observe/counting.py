"""What a store did, in numbers: fed from what enters and leaves `handle`, and from nothing else.

It stands beside the journal. Whatever happens in here, the store never notices: an error is counted, and that
is all. What is kept has a bound: kinds of events and of operations, reasons, links, transfers under way.
"""

from bisect import bisect_left
from collections import defaultdict

from msgspec import Struct, field

from kvstore.core.calls import Single, Step
from kvstore.core.effects import Effects, Transfer
from kvstore.core.errors import KVStoreError
from kvstore.core.events import Event, TransferEnded
from kvstore.core.operations import Grow, Operation
from kvstore.core.types import Link, Tier, TransferId

__all__ = ["SECONDS", "Counts", "Histogram", "LinkCounts"]

# Upper bounds of a step's time: an empty one takes 7 us in the store.
SECONDS = (
    10e-6,
    25e-6,
    50e-6,
    100e-6,
    250e-6,
    500e-6,
    1e-3,
    2.5e-3,
    5e-3,
    10e-3,
    25e-3,
    50e-3,
    100e-3,
    250e-3,
    1.0,
)


class Histogram:
    """How often which duration was seen. The last place is for all beyond the bounds."""

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


class LinkCounts(Struct):
    """`seconds`: from the effect that starts a transfer to the event that ends it, summed."""

    transfers: int = 0
    blocks_started: int = 0
    blocks_moved: int = 0
    blocks_failed: int = 0
    seconds: float = 0.0

    @property
    def blocks_under_way(self) -> int:
        return self.blocks_started - self.blocks_moved - self.blocks_failed


class _UnderWay(Struct):
    link: LinkCounts
    blocks: int
    time: float


class Counts(Struct):
    """Of one store, since its start. On the thread that owns the store."""

    events: defaultdict[type[Event], int] = field(default_factory=lambda: defaultdict(int))
    # Events that were refused, by the reason told. A bug counts under its exception's name.
    refusals: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    # By kind; a Grow counts once, and its sequences beside it.
    operations: defaultdict[type, int] = field(default_factory=lambda: defaultdict(int))
    sequences_grown: int = 0
    sequences_admitted: int = 0
    blocks_queried: int = 0
    # By tier.
    blocks_hit: list[int] = field(default_factory=lambda: [0 for _ in Tier])
    links: defaultdict[Link, LinkCounts] = field(default_factory=lambda: defaultdict(LinkCounts))
    blocks_deleted: int = 0
    # Of steps: inside the store, and from the request's bytes to the answer's.
    store_seconds: Histogram = field(default_factory=Histogram)
    call_seconds: Histogram = field(default_factory=Histogram)
    # Of the counting itself.
    errors: int = 0
    _under_way: dict[TransferId, _UnderWay] = field(default_factory=dict)

    def write(self, event: Event, result: Effects | Exception, seconds: float) -> None:
        """An event, its effects or what `handle` raised, and how long that took."""
        try:
            self._write(event, result, seconds)
        except Exception:
            self.errors += 1

    def add_call(self, seconds: float) -> None:
        """A step was answered."""
        try:
            self.call_seconds.add(seconds)
        except Exception:
            self.errors += 1

    @property
    def operation_count(self) -> int:
        """Each sequence of a Grow counts as one, as for the limit of a step."""
        return sum(self.operations.values()) - self.operations[Grow] + self.sequences_grown

    def _write(self, event: Event, result: Effects | Exception, seconds: float) -> None:
        self.events[type(event)] += 1
        if not isinstance(result, Effects):
            self.refusals[result.reason if isinstance(result, KVStoreError) else type(result).__name__] += 1
            return
        # By type: most events are steps, and each microsecond of one counts.
        if type(event) is Step:
            self._count_step(event.operations, result, seconds)
        elif type(event) is Single:
            self._count_step((event.operation,), result, seconds)
        elif type(event) is TransferEnded:
            self._end(event)
        if result.transfers or result.deletes:
            for transfer in result.transfers:
                self._start(transfer, event.time)
            for delete in result.deletes:
                self.blocks_deleted += len(delete.keys)

    def _count_step(self, operations: tuple[Operation, ...], effects: Effects, seconds: float) -> None:
        self.store_seconds.add(seconds)
        kinds = self.operations
        for operation in operations:
            kinds[type(operation)] += 1
            if type(operation) is Grow:
                self.sequences_grown += len(operation.sequences)
        for each in effects.admitted:
            self.sequences_admitted += 1
            self.blocks_queried += each.blocks_queried
            for tier, blocks in enumerate(each.tier_blocks):
                self.blocks_hit[tier] += blocks

    def _start(self, transfer: Transfer, time: float) -> None:
        link, blocks = self.links[transfer.source, transfer.target], len(transfer.source_frames)
        link.transfers += 1
        link.blocks_started += blocks
        self._under_way[transfer.id] = _UnderWay(link, blocks, time)

    def _end(self, event: TransferEnded) -> None:
        under_way = self._under_way.pop(event.transfer)
        failed = len(event.failed)
        under_way.link.blocks_failed += failed
        under_way.link.blocks_moved += under_way.blocks - failed
        under_way.link.seconds += max(0.0, event.time - under_way.time)
