"""One link at work, with a disk or a memory that is slow, late or fails by seed: order, ends, returns."""

import queue
import random
import threading

import pytest

from kvstore.core.effects import DiskDelete, Transfer
from kvstore.core.errors import CheckFailed
from kvstore.core.types import Frame, Tier, TransferId, Urgency
from kvstore.tiers.disk import DiskWriteFailed
from kvstore.tiers.movers import Movers
from kvstore.tiers.moves import Part, PieceEnd
from kvstore.tiers.pacing import RealClock, TokenBucket
from kvstore.tiers.pool import HostPool
from kvstore.tiers.rates import LinkRates
from kvstore.tiers.turns import GiveWay
from tests.tiers.helpers import chain, open_tier
from tests.tiers.mover_house import FRAME, WAIT, House, transfer

# ---------------------------------------------------------------------------------- order


def test_what_is_asked_for_passes_what_is_under_way_after_one_piece():
    begun, go = threading.Semaphore(0), threading.Semaphore(0)
    order: list[tuple[int, int]] = []

    def move(part: Part) -> PieceEnd:
        order.append((part.transfer.id, part.start))
        begun.release()
        assert go.acquire(timeout=WAIT)
        return PieceEnd()

    house = House(move)
    house.mover.put(transfer(1, 3, Urgency.BACKGROUND))
    assert begun.acquire(timeout=WAIT)
    house.mover.put(transfer(2, 2, Urgency.PREFETCH))
    house.mover.put(transfer(3, 2, Urgency.ASKED))
    for _ in range(7):
        go.release()
    assert [house.next()[1] for _ in range(3)] == [3, 2, 1]
    assert order == [(1, 0), (3, 0), (3, 1), (2, 0), (2, 1), (1, 1), (1, 2)]
    house.close()


def test_what_is_raised_under_way_passes_what_came_later_and_others_give_way_to_it():
    begun, go = threading.Semaphore(0), threading.Semaphore(0)
    order: list[tuple[int, int]] = []
    give_way = GiveWay()

    def move(part: Part) -> PieceEnd:
        order.append((part.transfer.id, part.start))
        begun.release()
        assert go.acquire(timeout=WAIT)
        return PieceEnd()

    house = House(move, is_given_way=give_way)
    house.mover.put(transfer(1, 2, Urgency.PREFETCH))
    assert begun.acquire(timeout=WAIT)
    house.mover.put(transfer(2, 1, Urgency.ASKED))
    assert give_way.asked == 1
    for _ in range(2):
        house.mover.raise_to_asked(TransferId(1))
    assert give_way.asked == 2
    for _ in range(3):
        go.release()
    assert [house.next()[1] for _ in range(2)] == [1, 2]
    assert order == [(1, 0), (1, 1), (2, 0)]
    house.mover.raise_to_asked(TransferId(1))
    assert give_way.asked == 0
    house.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_each_transfer_ends_once_with_what_failed_in_it(seed, threads):
    rng = random.Random(seed)
    bad = {(number, place) for number in range(1, 41) for place in range(8) if rng.random() < 0.2}
    raised = {(number, place) for number in range(1, 41) for place in range(8) if rng.random() < 0.05}

    def move(part: Part) -> PieceEnd:
        places = range(part.start, part.stop)
        if any((part.transfer.id, place) in raised for place in places):
            raise RuntimeError("unforeseen")
        return PieceEnd(failed=tuple(place for place in places if (part.transfer.id, place) in bad))

    house = House(move, threads=threads, piece_bytes=2 * FRAME)
    counts = {number: rng.randint(1, 8) for number in range(1, 41)}
    for number, count in counts.items():
        house.mover.put(transfer(number, count, rng.choice(list(Urgency))))
    ends = {}
    for _ in range(40):
        kind, id, failed, late = house.next()
        assert kind == "ended"
        assert id not in ends
        assert late == ()
        ends[id] = set(failed)
    for id, failed in ends.items():
        lost = {place for number, place in bad if number == id}
        for number, place in raised:
            if number == id and place < counts[id]:  # A piece that raises has failed whole.
                lost |= {place - place % 2, place - place % 2 + 1}
        assert failed == {place for place in lost if place < counts[id]}
    assert house.mover.bytes_in_flight == 0
    assert house.mover.alive()
    house.close()
    assert house.told.empty()


def test_what_is_not_begun_at_the_end_fails_and_what_is_under_way_ends_with_its_piece():
    begun, go = threading.Event(), threading.Event()

    def move(part: Part) -> PieceEnd:
        begun.set()
        assert go.wait(WAIT)
        return PieceEnd()

    house = House(move)
    house.mover.put(transfer(1, 3))
    assert begun.wait(WAIT)
    house.mover.put(transfer(2, 2))
    house.mover.put_stop()
    assert not house.mover.join(0.01)
    assert house.next() == ("ended", 2, (0, 1), ())
    go.set()
    assert house.next() == ("ended", 1, (1, 2), ())
    assert house.mover.join(WAIT)


def test_under_a_slow_limit_a_transfer_gives_way_after_less():
    sizes: list[tuple[int, int]] = []

    def move(part: Part) -> PieceEnd:
        sizes.append((part.transfer.id, part.stop - part.start))
        return PieceEnd()

    bucket = TokenBucket(RealClock(), 35 * FRAME)  # Three and a half frames in a tenth of a second.
    house = House(move, piece_bytes=8 * FRAME, bucket=bucket)
    house.mover.put(transfer(1, 7))
    house.next()
    bucket.set_rate(1)
    house.mover.put(transfer(2, 2))
    house.next()
    bucket.set_rate(0)
    house.mover.put(transfer(3, 9))
    house.next()
    assert sizes == [(1, 3), (1, 3), (1, 1), (2, 1), (2, 1), (3, 8), (3, 1)]
    house.close()


# --------------------------------------------------------------------------------- bounds


def test_more_bytes_than_the_core_starts_are_a_bug_but_one_block_may_be_larger():
    held = threading.Event()

    def move(part: Part) -> PieceEnd:
        held.wait(WAIT)
        return PieceEnd()

    house = House(move, in_flight_bytes_max=4 * FRAME)
    house.mover.put(transfer(1, 9))  # Larger than all, but alone.
    with pytest.raises(CheckFailed, match="bytes in flight"):
        house.mover.put(transfer(2, 1))
    held.set()
    house.next()
    house.mover.put(transfer(3, 2))
    house.mover.put(transfer(4, 2))
    assert {house.next()[1] for _ in range(2)} == {3, 4}
    house.close()


def test_deletes_stay_between_the_writes_that_they_were_given_between():
    done: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def move(part: Part) -> PieceEnd:
        begun.set()
        assert go.wait(WAIT)
        done.append(f"write {part.transfer.id}")
        return PieceEnd()

    house = House(move, piece_bytes=0, tell=lambda told: done.append("delete"))
    house.mover.put(transfer(1, 1, Urgency.BACKGROUND))
    assert begun.wait(WAIT)
    house.mover.put(transfer(2, 1, Urgency.BACKGROUND))
    house.mover.put_told(DiskDelete(keys=()))
    house.mover.put(transfer(3, 1, Urgency.ASKED))
    house.mover.put_told(DiskDelete(keys=()))
    go.set()
    for _ in range(3):
        house.next()
    house.close()
    assert done == ["write 1", "write 2", "delete", "write 3", "delete"]


def test_a_failed_lot_under_a_slow_limit_takes_the_lots_before_it_back(tmp_path, monkeypatch):
    """A write is all or nothing for the core, in how many batches ever it goes to disk."""
    disk = open_tier(tmp_path, size=60_000)
    ends: queue.SimpleQueue = queue.SimpleQueue()
    write, batches = disk.write, []

    def fails_third(keys, payloads, **options):
        batches.append(len(keys))
        if len(batches) == 3:
            raise DiskWriteFailed("full")
        write(keys, payloads, **options)

    monkeypatch.setattr(disk, "write", fails_third)
    with HostPool("gpu", 2, 60_000, 1) as gpu, HostPool("cpu", 4, 60_000, 1) as cpu:
        movers = Movers(gpu, cpu, disk, lambda id, failed, late: ends.put(failed))
        movers.set_rate((Tier.CPU, Tier.DISK), 6e6)
        frames = tuple(map(Frame, range(4)))
        for number in (1, 2):
            job = Transfer(
                id=TransferId(number),
                source=Tier.CPU,
                target=Tier.DISK,
                source_frames=frames,
                target_frames=frames,
                keys=tuple(chain(4)),
            )
            movers.start([job], [])
            assert ends.get(timeout=WAIT) == ((0, 1, 2, 3) if number == 1 else ())
            assert disk.held_blocks == (0 if number == 1 else 4)
        assert batches == [1] * 7
        assert movers.close(WAIT)
    disk.close()


def test_what_the_disk_does_under_a_limit_says_nothing_of_what_it_can_do(tmp_path):
    """Otherwise a share of what is measured would be a share of that share before long."""
    disk, rates = open_tier(tmp_path, size=60_000), LinkRates()
    ends: queue.SimpleQueue = queue.SimpleQueue()
    link = (Tier.CPU, Tier.DISK)
    with HostPool("gpu", 2, 60_000, 1) as gpu, HostPool("cpu", 8, 60_000, 1) as cpu:
        movers = Movers(gpu, cpu, disk, lambda id, failed, late: ends.put(failed), rates=rates)
        for number, rate in ((0, 1e6), (4, 0)):
            movers.set_rate(link, rate)
            frames = tuple(map(Frame, range(number, number + 4)))
            job = Transfer(
                id=TransferId(number),
                source=Tier.CPU,
                target=Tier.DISK,
                source_frames=frames,
                target_frames=frames,
                keys=tuple(chain(8)[number : number + 4]),
            )
            movers.start([job], [])
            assert ends.get(timeout=WAIT) == ()
            assert rates.rate(link).samples == (0 if rate else 1)
        assert movers.close(WAIT)
    disk.close()
