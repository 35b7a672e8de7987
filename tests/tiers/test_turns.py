"""Whose turn it is: strict by urgency, aged by waiting, whole links played through on virtual time."""

import random

import pytest

from kvstore.core.effects import DiskDelete, DiskSync, Transfer
from kvstore.core.types import SyncId, Tier, TransferId, Urgency
from kvstore.tiers.turns import AGEING_SECONDS, FLOOR_SHARE, GiveWay, Job, Piece, Turns


def transfer(number: int, urgency: Urgency = Urgency.ASKED) -> Transfer:
    return Transfer(
        id=TransferId(number),
        source=Tier.CPU,
        target=Tier.GPU,
        source_frames=(),
        target_frames=(),
        urgency=urgency,
    )


def job(
    number: int, urgency: Urgency = Urgency.ASKED, at: float = 0.0, count: int = 4, piece: int = 1
) -> Job:
    return Job(transfer(number, urgency), count, piece, at)


def numbers(turns: Turns) -> list[int]:
    """By transfer's id, all that is left to do, in its order; deletes are 0."""
    taken = []
    while (piece := turns.take()) is not None:
        work = piece.job.work
        taken.append(work.id if isinstance(work, Transfer) else 0)
        turns.end(piece)
    assert not turns
    return taken


def test_the_more_urgent_goes_first_and_of_equals_the_older():
    turns = Turns()
    order = [Urgency.BACKGROUND, Urgency.PREFETCH, Urgency.ASKED, Urgency.NEEDED, Urgency.ASKED]
    for number, urgency in enumerate(order, 1):
        turns.add(job(number, urgency, at=number / 100, count=1))
    assert numbers(turns) == [3, 5, 4, 2, 1]


def test_one_under_way_gives_way_between_pieces_and_goes_on_before_its_equals():
    turns = Turns()
    turns.add(job(1, Urgency.BACKGROUND, count=6, piece=2))
    turns.add(job(2, Urgency.BACKGROUND, at=0.01, count=1))
    first = turns.take()
    assert first is not None
    assert (first.job.count, first.start, first.stop) == (6, 0, 2)
    turns.add(job(3, Urgency.ASKED, at=0.02, count=3, piece=2))
    assert numbers(turns) == [3, 3, 1, 1, 2]


def test_what_somebody_comes_to_wait_for_goes_before_what_is_asked_for_later():
    """Behind whatever is asked for in the next two seconds it would have stood otherwise."""
    turns = Turns()
    ahead = job(1, Urgency.PREFETCH, at=0.0, count=2)
    turns.add(ahead)
    for number in (2, 3):
        turns.add(job(number, Urgency.ASKED, at=number / 10, count=1))
    turns.add(job(4, Urgency.ASKED, at=2 * AGEING_SECONDS - 0.01, count=1))
    taken = turns.take()
    assert taken is not None
    assert taken.job.work == transfer(2)
    assert turns.raise_to_asked(TransferId(1)) is ahead
    assert turns.raise_to_asked(TransferId(1)) is None, "once is enough"
    assert turns.raise_to_asked(TransferId(9)) is None
    assert (ahead.urgency, numbers(turns)) == (Urgency.ASKED, [1, 1, 3, 4])


def test_pieces_cover_a_transfer_once():
    for count in (1, 2, 7, 8):
        for size in (1, 3, 8, 100):
            turns = Turns()
            covered: list[int] = []
            turns.add(job(1, count=count, piece=size))
            while (piece := turns.take()) is not None:
                assert piece.stop - piece.start <= size
                covered += range(piece.start, piece.stop)
            assert covered == list(range(count))


def test_pieces_can_be_taken_smaller_than_they_are():
    turns = Turns()
    turns.add(job(1, count=10, piece=4))
    spans = [turns.take(most) for most in (0, 3, 1, 9, 9)]
    assert [(each.start, each.stop) for each in spans if each is not None] == [
        (0, 4),
        (4, 7),
        (7, 8),
        (8, 10),
    ]
    assert spans[-1] is None


def test_waiting_makes_up_for_urgency_a_step_at_a_time():
    """Until then the order is strict: what was asked for passes whatever waits for less than that."""
    steps = Urgency.BACKGROUND - Urgency.ASKED
    for waited, first in ((steps * AGEING_SECONDS * 0.99, 2), (steps * AGEING_SECONDS * 1.01, 1)):
        turns = Turns()
        turns.add(job(1, Urgency.BACKGROUND, at=0.0, count=1))
        turns.add(job(2, Urgency.ASKED, at=waited, count=1))
        assert numbers(turns)[0] == first


@pytest.mark.parametrize("seed", range(3))
def test_nothing_starves_however_much_is_asked_for(seed):
    """A mover that gets as much of what is asked for as it can do, for minutes; others come now and then."""
    rng, turns, now, running = random.Random(seed), Turns(), 0.0, 0
    waits: dict[Urgency, list[float]] = {urgency: [] for urgency in Urgency}
    number = 0
    while now < 60.0:
        while len(turns) < 8:
            number += 1
            turns.add(job(number, Urgency.ASKED, at=now, count=rng.randint(1, 8)))
        if rng.random() < 0.02:
            number += 1
            turns.add(job(number, rng.choice(list(Urgency)), at=now, count=rng.randint(1, 8)))
        piece = turns.take()
        assert piece is not None
        if not piece.start:
            waits[piece.job.urgency].append(now - piece.job.queued_at)
        running += 1
        now += 0.004
    assert all(waits.values())
    longest = {urgency: max(each) for urgency, each in waits.items()}
    # What has passed all others by its age has at most those before it that are as old.
    for urgency, longest_wait in longest.items():
        assert longest_wait < (urgency - Urgency.ASKED) * AGEING_SECONDS + 2.0
    assert longest[Urgency.ASKED] < 1.0


@pytest.mark.parametrize("seed", range(10))
def test_deletes_keep_their_order_with_all_that_was_given_before_and_after(seed):
    rng, turns = random.Random(seed), Turns()
    spans: list[set[int]] = [set()]
    for number in range(1, 40):
        if rng.random() < 0.3:
            turns.add(Job(DiskDelete(keys=()), 1, 1, rng.uniform(0, 20)))
            spans.append(set())
        else:
            turns.add(job(number, rng.choice(list(Urgency)), at=rng.uniform(0, 20), count=rng.randint(1, 3)))
            spans[-1].add(number)
    seen: list[set[int]] = [set()]
    for number in numbers(turns):
        if number:
            seen[-1].add(number)
        else:
            seen.append(set())
    assert seen == spans


# ------------------------------------------------------------------------------ giving way


def test_only_background_gives_way_and_only_to_what_is_asked_for():
    way = GiveWay()
    way.ended(Urgency.BACKGROUND, 10.0, 1.0)
    assert way.hold_seconds(Urgency.BACKGROUND, 10.0) == 0
    way.asked = 1
    assert way.hold_seconds(Urgency.BACKGROUND, 10.0) == pytest.approx(1 / FLOOR_SHARE - 1)
    assert way.hold_seconds(Urgency.NEEDED, 10.0) == 0


@pytest.mark.parametrize("seed", range(5))
def test_background_keeps_its_floor_and_no_more_while_others_are_asked_for(seed):
    rng, way, now, moving = random.Random(seed), GiveWay(), 0.0, 0.0
    way.asked = 1
    while now < 60.0:
        hold = way.hold_seconds(Urgency.BACKGROUND, now)
        if hold:
            now += hold
        seconds = rng.uniform(0.0005, 0.002)
        now, moving = now + seconds, moving + seconds
        way.ended(Urgency.BACKGROUND, now, seconds)
    assert moving / now == pytest.approx(FLOOR_SHARE, rel=0.05)


def test_background_goes_on_at_once_when_nothing_is_asked_for_any_more():
    way = GiveWay()
    way.asked = 1
    way.ended(Urgency.BACKGROUND, 5.0, 100.0)
    assert way.hold_seconds(Urgency.BACKGROUND, 5.0) > 0
    way.asked = 0
    assert way.hold_seconds(Urgency.BACKGROUND, 5.0) == 0


def told(kind: type[DiskDelete] | type[DiskSync] = DiskDelete) -> Job:
    return Job(DiskSync(sync=SyncId(1)) if kind is DiskSync else DiskDelete(keys=()), 1, 1, 0.0)


def take(turns: Turns) -> Piece:
    piece = turns.take()
    assert piece is not None
    return piece


def test_what_the_disk_is_told_does_not_wait_for_the_ends_of_transfers():
    turns = Turns()
    for each in (job(1, count=1), told(), job(2, count=1)):
        turns.add(each)
    first, delete = take(turns), take(turns)
    assert turns.first() is None, "the slots that it frees are for the next one"
    turns.end(delete)
    second = take(turns)
    assert (first.job.work, second.job.work) == (transfer(1), transfer(2))


def test_it_waits_until_all_pieces_before_it_are_begun_and_all_that_was_told_is_done():
    turns = Turns()
    for each in (job(1, count=2), told(), told()):
        turns.add(each)
    assert [isinstance(take(turns).job.work, Transfer) for _ in range(2)] == [True, True]
    delete = take(turns)
    assert turns.first() is None
    turns.end(delete)
    assert isinstance(take(turns).job.work, DiskDelete)


def test_a_sync_waits_for_the_ends_of_all_before_it_and_holds_up_what_comes_later():
    turns = Turns()
    for each in (job(1, count=1), told(DiskSync), job(2, count=1)):
        turns.add(each)
    first = take(turns)
    assert turns.first() is None
    turns.end(first)
    sync = take(turns)
    assert isinstance(sync.job.work, DiskSync)
    assert turns.first() is None
    turns.end(sync)
    assert take(turns).job.work == transfer(2)
