"""Reads that missed their deadline: what a mover tells of their frames, and when."""

import queue
import threading
from collections.abc import Callable

from kvstore.core.effects import Transfer
from kvstore.core.types import READ, Frame, TransferId
from kvstore.tiers.disk import ReadOutcome
from kvstore.tiers.movers import READ_PIECE_BYTES, Movers
from kvstore.tiers.moves import Part, PieceEnd
from kvstore.tiers.pool import HostPool
from tests.tiers.helpers import chain, open_tier
from tests.tiers.mover_house import FRAME, WAIT, House, transfer


def test_late_frames_come_back_after_their_transfers_end_and_once():
    comes_back: list[Callable[[int], None]] = []

    def move(part: Part) -> PieceEnd:
        comes_back.append(part.returned)
        late = tuple(range(part.start, part.stop))
        return PieceEnd(failed=late, late=late)

    house = House(move, piece_bytes=2 * FRAME)
    house.mover.put(transfer(7, 4))
    assert house.next() == ("ended", 7, (0, 1, 2, 3), (0, 1, 2, 3))
    for place in (3, 0):
        comes_back[0](place)
        assert house.next() == ("returned", 7, (place,))
    comes_back[0](3)
    house.close()
    assert house.told.empty()


def test_what_comes_back_before_the_end_was_late_all_the_same():
    """Else it would count as bad, and be forgotten: nothing says that it is."""

    def move(part: Part) -> PieceEnd:
        for place in (0, 2):
            part.returned(place)
        return PieceEnd(failed=(0, 1, 2), late=(0, 1, 2))

    house = House(move, piece_bytes=4 * FRAME)
    house.mover.put(transfer(7, 4))
    assert house.next() == ("ended", 7, (0, 1, 2), (0, 1, 2))
    assert house.next() == ("returned", 7, (0, 2))
    house.close()
    assert house.told.empty()


def test_returns_that_race_with_the_end_are_told_once_after_it():
    """Seeded only by the threads; whichever way it goes."""
    for _ in range(200):
        threads: list[threading.Thread] = []

        def move(part: Part, threads=threads) -> PieceEnd:
            thread = threading.Thread(target=part.returned, args=(0,))
            threads.append(thread)
            thread.start()
            return PieceEnd(failed=(0,), late=(0,))

        house = House(move)
        house.mover.put(transfer(1, 1))
        kind, _, failed, late = house.next()
        assert (kind, failed, late) == ("ended", (0,), (0,))
        assert house.next() == ("returned", 1, (0,))
        threads[0].join(WAIT)
        house.close()
        assert house.told.empty()


def test_late_reads_of_a_real_pool_name_their_places_in_the_transfer(tmp_path, monkeypatch):
    """Pieces begin anywhere in a transfer; the disk counts from the piece's first block."""
    blocks = READ_PIECE_BYTES // (1 << 20) + 3
    disk = open_tier(tmp_path, cap=256 << 20, size=1 << 20)
    ends: queue.SimpleQueue = queue.SimpleQueue()
    back: queue.SimpleQueue = queue.SimpleQueue()
    returns: list[Callable[[int], None]] = []

    def read(keys, outs, *, pace, returned):
        returns.append(returned)
        return [ReadOutcome.GOOD, ReadOutcome.LATE, *[ReadOutcome.BAD] * (len(keys) - 2)]

    with HostPool("gpu", 2, 1 << 20, 1) as gpu, HostPool("cpu", blocks, 1 << 20, 1) as cpu:
        movers = Movers(
            gpu,
            cpu,
            disk,
            lambda id, failed, late: ends.put((failed, late)),
            returned=lambda id, positions: back.put(positions),
        )
        monkeypatch.setattr(disk, "read", read)
        frames = tuple(map(Frame, range(blocks)))
        source, target = READ
        job = Transfer(
            id=TransferId(1),
            source=source,
            target=target,
            source_frames=frames,
            target_frames=frames,
            keys=tuple(chain(blocks)),
        )
        movers.start([job], [])
        failed, late = ends.get(timeout=WAIT)
        second = blocks - 3
        assert late == (1, second + 1)
        assert set(failed) == set(range(blocks)) - {0, second}
        for returned in returns:
            returned(1)
        assert {back.get(timeout=WAIT) for _ in late} == {(1,), (second + 1,)}
        assert movers.close(WAIT)
    disk.close()
