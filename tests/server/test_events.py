"""The ring of events and those who read it, without gRPC."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kvstore.core.errors import CheckFailed, RevisionCompacted
from kvstore.core.notices import BlocksStored, EngineGone, Happening
from kvstore.core.types import BlockKey, EngineId, NamespaceId, Revision, TenantId, Tier
from kvstore.server import events as module
from kvstore.server.calls import Stopped
from kvstore.server.errors import TooManyStreams
from kvstore.server.events import BATCH_EVENTS_MAX, EventRing, Events
from kvstore.server.watchers import Watchers


def gone(*revisions: int) -> list[Happening]:
    return [EngineGone(revision=Revision(each), engine=EngineId("e")) for each in revisions]


def stored(revision: int, keys: int) -> Happening:
    return BlocksStored(
        revision=Revision(revision),
        tier=Tier.GPU,
        namespace=NamespaceId(1),
        tenant=TenantId(1),
        keys=(BlockKey(b"k" * 32),) * keys,
    )


def revisions(batch: list[Happening]) -> list[int]:
    return [each.revision for each in batch]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(body())


# --------------------------------------------------------------------------------- the ring


def test_the_ring_keeps_the_last_events() -> None:
    ring = EventRing(3, 100)
    ring.add(gone(1, 2))
    ring.add(gone(3, 4, 5))
    assert revisions(ring.read(3)) == [3, 4, 5]
    assert revisions(ring.read(5)) == [5]
    assert revisions(ring.read(6)) == []
    for start in (1, 2, 7):
        with pytest.raises(RevisionCompacted, match="events 3 to 5 are here"):
            ring.read(start)


def test_keys_count_too_and_one_large_event_may_leave_at_once() -> None:
    ring = EventRing(10, 100)
    for revision in range(1, 5):
        ring.add([stored(revision, 40)])
    assert revisions(ring.read(3)) == [3, 4]
    with pytest.raises(RevisionCompacted):
        ring.read(2)
    ring.add([stored(5, 101)])
    with pytest.raises(RevisionCompacted):
        ring.read(5)
    assert ring.read(6) == []
    ring.add(gone(6))
    assert revisions(ring.read(6)) == [6]


def test_a_message_has_a_bound_and_takes_one_event_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_ITEMS_MAX", 50)
    ring = EventRing(1000, 1000)
    ring.add([stored(1, 60), stored(2, 30), stored(3, 20), stored(4, 1)])
    assert [revisions(ring.read(start)) for start in (1, 2, 4)] == [[1], [2, 3], [4]]
    ring.add(gone(*range(5, 5 + 2 * BATCH_EVENTS_MAX)))
    assert len(ring.read(5)) == BATCH_EVENTS_MAX


def test_a_gap_is_a_bug() -> None:
    ring = EventRing(10, 10)
    ring.begin(Revision(7))
    ring.add(gone(8))
    with pytest.raises(CheckFailed):
        ring.add(gone(10))


# ---------------------------------------------------------------------------- who reads it


def test_each_reads_where_it_stands_from_now_on_or_from_before() -> None:
    async def scenario() -> None:
        events = Events()
        events.begin(Revision(0))
        events.add(gone(1, 2))
        late, early = events.read(0), events.read(1)
        assert await anext(late) == (2, [])
        assert await anext(early) == (0, [])
        assert await anext(early) == (2, gone(1, 2))
        waiting = [asyncio.ensure_future(anext(each)) for each in (late, early)]
        await asyncio.sleep(0)
        events.add(gone(3))
        assert await asyncio.gather(*waiting) == [(3, gone(3))] * 2

    run(scenario)


def test_one_who_is_too_slow_is_told_and_nothing_was_kept_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_MAX", 4)

    async def scenario() -> None:
        events = Events()
        events.begin(Revision(0))
        slow, quick = events.read(0), events.read(0)
        await anext(slow), await anext(quick)
        for revision in range(1, 6):
            events.add(gone(revision))
            assert await anext(quick) == (revision, gone(revision))
        with pytest.raises(RevisionCompacted, match="events 2 to 5 are here"):
            await anext(slow)

    run(scenario)


def test_the_end_comes_after_all_that_is_there() -> None:
    async def scenario() -> None:
        events = Events()
        events.begin(Revision(0))
        reader = events.read(0)
        await anext(reader)
        events.add(gone(1))
        events.close()
        assert await anext(reader) == (1, gone(1))
        with pytest.raises(Stopped):
            await anext(reader)
        later = events.read(0)
        await anext(later)
        with pytest.raises(Stopped):
            await anext(later)

    run(scenario)


def test_places_have_a_bound_and_come_back() -> None:
    watchers = Watchers(2)
    with watchers.place():
        with watchers.place(), pytest.raises(TooManyStreams, match="2 watch already"), watchers.place():
            pass
        with watchers.place():
            assert watchers.count == 2
    assert watchers.count == 0


def test_one_who_has_gone_is_not_woken() -> None:
    async def scenario() -> None:
        watchers = Watchers(2)
        gone_one, other = (asyncio.ensure_future(watchers.change()) for _ in range(2))
        await asyncio.sleep(0)
        gone_one.cancel()
        watchers.wake()
        await other
        with pytest.raises(asyncio.CancelledError):
            await gone_one

    run(scenario)
