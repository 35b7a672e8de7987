"""One link at work, with a disk or a memory that is slow, late or fails by seed: order, ends, returns."""

import queue
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvstore.core.effects import DiskDelete, Transfer
from kvstore.core.errors import CheckFailed
from kvstore.core.types import COPY, LOAD, READ, Frame, Tier, TransferId, Urgency
from kvstore.tiers import moves
from kvstore.tiers.copying import COPY_PIECE_BYTES
from kvstore.tiers.disk import DiskWriteFailed, ReadOutcome
from kvstore.tiers.mover import Mover
from kvstore.tiers.mover_setup import MoverSetup
from kvstore.tiers.movers import READ_PIECE_BYTES, Movers
from kvstore.tiers.moves import Part, PieceEnd
from kvstore.tiers.pacing import RealClock, TokenBucket
from kvstore.tiers.pool import HostPool
from kvstore.tiers.rates import LinkRates
from kvstore.tiers.turns import GiveWay
from tests.tiers.helpers import chain, open_tier

WAIT = 20.0
FRAME = 4096


def transfer(number: int, blocks: int = 4, urgency: Urgency = Urgency.ASKED) -> Transfer:
    frames = tuple(Frame(frame) for frame in range(blocks))
    return Transfer(
        id=TransferId(number),
        source=Tier.CPU,
        target=Tier.GPU,
        source_frames=frames,
        target_frames=frames,
        urgency=urgency,
    )


class House:
    """A mover with a move of the test's own, and all that it tells, in order."""

    def __init__(self, move: Callable[[Part], PieceEnd], **setup) -> None:
        self.told: queue.SimpleQueue[tuple] = queue.SimpleQueue()
        given: dict[str, Any] = {
            "name": "test",
            "move": move,
            "frame_bytes": FRAME,
            "piece_bytes": FRAME,
            "ended": lambda id, failed, late: self.told.put(("ended", id, failed, late)),
            "returned": lambda id, positions: self.told.put(("returned", id, positions)),
            "bucket": TokenBucket(RealClock()),
        }
        self.mover = Mover(MoverSetup(**(given | setup)))

    def next(self) -> tuple:
        return self.told.get(timeout=WAIT)

    def close(self) -> None:
        self.mover.put_stop()
        assert self.mover.join(WAIT)


def nothing(part: Part) -> PieceEnd:
    return PieceEnd()


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


# ----------------------------------------------------------------------------- late reads


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


# ------------------------------------------------------------------------- rows of CASES.md


def test_case_6_01_starting_thousands_of_copies_waits_for_none_and_neighbours_move_as_one(monkeypatch):
    """CASES.md 6.01: 5,000 block copies are started while nothing moves at all, and go in few large ones."""
    blocks, size = 5_000, 4096
    ends: queue.SimpleQueue = queue.SimpleQueue()
    copies: list[tuple[int, int, int]] = []

    def copy(from_, to, runs, part, copy=moves._copy_paced):
        copies.extend(runs)
        return copy(from_, to, runs, part)

    monkeypatch.setattr(moves, "_copy_paced", copy)
    monkeypatch.setattr(moves, "_copy", copy)
    with HostPool("gpu", blocks, size, 1) as gpu, HostPool("cpu", blocks, size, 1) as cpu:
        gpu.frames(0)[:] = np.arange(blocks, dtype=np.uint8)[:, None]
        movers = Movers(gpu, cpu, None, lambda id, failed, late: ends.put(id))
        # The link stands still: whoever waited for a copy here would wait for ever.
        movers.set_rate(COPY, 1)
        source, target = COPY
        frames = list(map(Frame, range(blocks)))
        jobs = [
            Transfer(
                id=TransferId(start),
                source=source,
                target=target,
                source_frames=tuple(frames[start : start + 100]),
                target_frames=tuple(frames[start : start + 100]),
            )
            for start in range(0, blocks, 100)
        ]
        movers.start(jobs, [])
        assert movers.by_link[COPY].counts.blocks_moved < blocks
        movers.set_rate(COPY, 0)
        assert {ends.get(timeout=WAIT) for _ in jobs} == {job.id for job in jobs}
        assert np.array_equal(gpu.frames(0), cpu.frames(0))
        assert sum(count for _, _, count in copies) == blocks
        # One a transfer, but for the first blocks, which went and stood under the limit.
        assert len(copies) <= len(jobs) + 2
        assert movers.close(WAIT)


def test_case_6_18_swap_ins_pass_200_swap_outs_that_still_get_on():
    """CASES.md 6.18, on the rules of the links alone: two links over one memory, in virtual time.

    What is asked for takes no more than twice its time alone; what nobody waits for keeps its floor.
    """
    way, now = GiveWay(), 0.0
    piece_seconds, waits, moved = 0.001, [], 0
    out_at = 0.0
    for _ in range(50):
        way.asked, began, left = 1, now, 4
        while left:
            # A piece of the other link runs beside it, and each has half of the memory's speed meanwhile.
            beside = now >= out_at and way.hold_seconds(Urgency.BACKGROUND, now) <= 0
            seconds = piece_seconds * (2 if beside else 1)
            now += seconds
            left -= 1
            if beside:
                way.ended(Urgency.BACKGROUND, now, seconds)
                moved += 1
        waits.append(now - began)
        way.asked = 0
        now += 0.001
    assert max(waits) <= 2 * 4 * piece_seconds
    assert moved > 0


@pytest.mark.parametrize("seed", range(3))
def test_case_6_18_swap_ins_never_stand_behind_swap_outs(seed):
    """With real threads: the way down stands still, 200 blocks wait for it, and the way up goes on."""
    rng = random.Random(seed)
    ends: queue.SimpleQueue = queue.SimpleQueue()
    with HostPool("gpu", 220, FRAME, 1) as gpu, HostPool("cpu", 220, FRAME, 1) as cpu:
        movers = Movers(gpu, cpu, None, lambda id, failed, late: ends.put(id))
        movers.set_rate(COPY, 1)
        rows = [Frame(frame) for frame in rng.sample(range(220), 205)]

        def job(number: int, link, frames, urgency) -> Transfer:
            return Transfer(
                id=TransferId(number),
                source=link[0],
                target=link[1],
                source_frames=tuple(frames),
                target_frames=tuple(frames),
                urgency=urgency,
            )

        down = [job(n, COPY, rows[n * 10 : n * 10 + 10], Urgency.BACKGROUND) for n in range(20)]
        movers.start(down, [])
        up = [job(100 + n, LOAD, rows[200 + n : 201 + n], Urgency.ASKED) for n in range(5)]
        movers.start(up, [])
        assert {ends.get(timeout=WAIT) for _ in up} == {each.id for each in up}
        movers.set_rate(COPY, 0)
        assert {ends.get(timeout=WAIT) for _ in down} == {each.id for each in down}
        assert movers.close(WAIT)


def test_case_6_19_a_slow_disk_holds_no_copies_of_blocks_and_nobody_who_starts_a_write(tmp_path):
    """CASES.md 6.19, as far as the movers go: what waits for a slow disk waits in its frames, bounded in
    bytes, and to start one more is refused at once and not waited for."""
    disk = open_tier(tmp_path, size=60_000)
    ends: queue.SimpleQueue = queue.SimpleQueue()
    with HostPool("gpu", 2, 60_000, 1) as gpu, HostPool("cpu", 8, 60_000, 1) as cpu:
        movers = Movers(
            gpu, cpu, disk, lambda id, failed, late: ends.put(failed), in_flight_bytes_max=4 * cpu.frame_bytes
        )
        movers.set_rate((Tier.CPU, Tier.DISK), 1)
        jobs = [
            Transfer(
                id=TransferId(number),
                source=Tier.CPU,
                target=Tier.DISK,
                source_frames=(Frame(number),),
                target_frames=(Frame(number),),
                keys=(chain(8)[number],),
            )
            for number in range(6)
        ]
        movers.start(jobs[:2], [])
        ends.get(timeout=WAIT)  # The first goes at once, and the next ones pay for it.
        movers.start(jobs[2:5], [])
        assert movers.by_link[Tier.CPU, Tier.DISK].bytes_in_flight == 4 * cpu.frame_bytes
        with pytest.raises(CheckFailed, match="bytes in flight"):
            movers.start(jobs[5:], [])
        movers.set_rate((Tier.CPU, Tier.DISK), 0)
        for _ in range(4):
            assert ends.get(timeout=WAIT) == ()
        assert movers.close(WAIT)
    disk.close()


def test_pieces_are_small_against_what_is_in_flight():
    assert 1 << 20 <= COPY_PIECE_BYTES <= 4 << 20
    assert READ_PIECE_BYTES <= 16 << 20
