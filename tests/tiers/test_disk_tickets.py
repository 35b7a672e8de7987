"""Several writes under way in the disk tier: their order, and what fails with what.

Who waits where is decided by gates at the seam of `files`, one for each segment file or call, never by time.
"""

import errno
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore.tiers.disk import DiskTier, DiskWriteFailed
from kvstore.tiers.disk_format import block_name
from kvstore.tiers.disk_io import IoKind
from kvstore.tiers.disk_table import BlockTable
from kvstore.tiers.disk_tickets import EarlierFailed, Tickets
from kvstore.tiers.files import DirectFiles
from tests.tiers.faults import PassedOn
from tests.tiers.helpers import chain, open_tier, read, stored, write

SIZE = 100_000
CAP = 8 << 20
WAIT = 30.0


class Gates(PassedOn):
    """Syncs wait at a gate; then they meet `errors`, first come first, and None is none."""

    def __init__(self) -> None:
        super().__init__(DirectFiles())
        self.errors: list[OSError | None] = []
        self.sync_gate = threading.Event()
        self.sync_gate.set()
        self.in_sync = threading.Semaphore(0)

    def sync(self, fd: int) -> None:
        self.in_sync.release()
        assert self.sync_gate.wait(WAIT)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        super().sync(fd)


@contextmanager
def tier_on(folder: Path, files: Gates):
    tier = open_tier(folder, CAP, SIZE, files=files)
    write(tier, chain(2, 90), SIZE)
    files.in_sync = threading.Semaphore(0)
    try:
        yield tier
    finally:
        assert tier.close(60)


def starts(threads: ThreadPoolExecutor, tier: DiskTier, keys: Sequence, started: threading.Event) -> Future:
    """A write in a thread of its own; its ticket is taken when this returns."""

    def run() -> None:
        with tier.tickets.take() as ticket:
            started.set()
            write(tier, keys, SIZE, ticket=ticket)

    done = threads.submit(run)
    assert started.wait(WAIT)
    return done


# ------------------------------------------------------------------------------ the line


def test_a_ticket_has_its_turn_when_those_before_it_have_ended():
    tickets = Tickets()
    first, second, third = tickets.take(), tickets.take(), tickets.take()
    ended: list[int] = []

    def end(ticket, number):
        ticket.wait_turn()
        ended.append(number)
        ticket.end(failed=False)

    with ThreadPoolExecutor(2) as threads:
        later = [threads.submit(end, third, 3), threads.submit(end, second, 2)]
        end(first, 1)
        for each in later:
            each.result(WAIT)
    assert ended == [1, 2, 3]


def test_one_that_fails_early_ends_in_its_turn_and_fails_those_behind_it():
    tickets = Tickets()
    first, second = tickets.take(), tickets.take()
    with ThreadPoolExecutor(1) as threads:
        early = threads.submit(second.end, failed=True)
        third = tickets.take()
        first.end(failed=False)
        early.result(WAIT)
    with pytest.raises(EarlierFailed):
        third.wait_turn()
    third.end(failed=False)
    assert third.has_failed, "a later one would take it for good"
    fourth = tickets.take()
    fourth.wait_turn()


# ------------------------------------------------------------------------------- the tier


def test_a_failed_batch_fails_those_begun_behind_it_and_nothing_of_them_is_found(tmp_path):
    files = Gates()
    with tier_on(tmp_path, files) as tier, ThreadPoolExecutor(3) as threads:
        free = free_slots(tier)
        files.sync_gate.clear()
        files.errors = [OSError(errno.EIO, "lost")]
        batches = [chain(2), chain(2, 2), chain(2, 4)]
        under_way = [starts(threads, tier, keys, threading.Event()) for keys in batches]
        assert until(lambda: free_slots(tier) == free - 6)
        files.sync_gate.set()
        reasons = []
        for each in under_way:
            with pytest.raises(DiskWriteFailed) as caught:
                each.result(WAIT)
            reasons.append(str(caught.value))
        assert "lost" in reasons[0]
        assert all("begun before it has failed" in reason for reason in reasons[1:])
        # The error of one device was one error.
        assert tier.counts.write_errors == 1
        assert free_slots(tier) == free
        assert not any(read(tier, key, SIZE) for keys in batches for key in keys)
    with tier_on_again(tmp_path) as tier:
        assert {key.key for key in tier.found(SIZE)} == {key.key for key in chain(2, 90)}


@contextmanager
def tier_on_again(folder: Path):
    tier = open_tier(folder, CAP, SIZE)
    try:
        yield tier
    finally:
        assert tier.close(60)


def test_a_sync_error_is_told_once_and_to_the_first_in_line(tmp_path):
    """Bytes of both are written when the one error of the file comes; a second sync would find all well."""
    files = Gates()
    with tier_on(tmp_path, files) as tier, ThreadPoolExecutor(2) as threads:
        files.sync_gate.clear()
        first = starts(threads, tier, chain(2), threading.Event())
        assert files.in_sync.acquire(timeout=WAIT)
        free = free_slots(tier)
        second = starts(threads, tier, chain(2, 2), threading.Event())
        assert until(lambda: free_slots(tier) == free - 2)
        files.errors = [OSError(errno.EIO, "told once"), None]
        files.sync_gate.set()
        for each in (first, second):
            with pytest.raises(DiskWriteFailed):
                each.result(WAIT)
        # Not even asked: the second has no sync.
        assert files.errors == [None]


def test_a_later_batch_is_durable_only_after_an_earlier_one(tmp_path, monkeypatch):
    files, commits, real = Gates(), [], BlockTable.put

    def put(table, rows, geometry, blocks):
        commits.append(len(blocks))
        return real(table, rows, geometry, blocks)

    monkeypatch.setattr(BlockTable, "put", put)
    with tier_on(tmp_path, files) as tier, ThreadPoolExecutor(2) as threads:
        commits.clear()
        first, second = tier.tickets.take(), tier.tickets.take()
        later = threads.submit(write, tier, chain(1, 5), SIZE, ticket=second)
        write(tier, chain(3), SIZE, ticket=first)
        first.end(failed=False)
        later.result(WAIT)
        second.end(failed=False)
    assert commits == [3, 1]


def test_one_begun_after_the_failure_has_ended_is_written(tmp_path):
    files, now = Gates(), [0.0]
    tier = open_tier(tmp_path, CAP, SIZE, files=files, clock=lambda: now[0])
    files.errors = [OSError(errno.EIO, "lost")]
    with pytest.raises(DiskWriteFailed):
        write(tier, chain(2), SIZE)
    now[0] += 100.0
    write(tier, chain(2), SIZE)
    assert tier.close(60)


def test_a_commit_that_is_late_fails_those_behind_it_and_is_made_up_for(tmp_path, monkeypatch):
    """Its entries may become durable when nobody waits for them any more: they are deleted then."""
    gate, real = threading.Event(), BlockTable.put
    tier = open_tier(tmp_path, CAP, SIZE, deadline_seconds=2.0)
    write(tier, chain(2, 90), SIZE)
    free = free_slots(tier)

    def put(table, rows, geometry, blocks):
        assert gate.wait(WAIT)
        return real(table, rows, geometry, blocks)

    monkeypatch.setattr(BlockTable, "put", put)
    with ThreadPoolExecutor(2) as threads:
        first = starts(threads, tier, chain(2), threading.Event())
        second = starts(threads, tier, chain(2, 2), threading.Event())
        for each in (first, second):
            with pytest.raises(DiskWriteFailed):
                each.result(WAIT)
    gate.set()
    assert until(tier.settle)
    assert free_slots(tier) == free
    assert not any(read(tier, key, SIZE) for key in chain(4))
    assert tier.close(60)


def test_what_is_written_again_is_not_deleted_by_a_debt_that_is_just_being_paid(tmp_path, monkeypatch):
    """Another thread has taken up what is owed, and comes to this block only after it was written."""
    entered, gate, real = threading.Event(), threading.Event(), BlockTable.remove
    tier = open_tier(tmp_path, CAP, SIZE)
    write(tier, chain(2), SIZE)
    deleter = tier._layout.laid_out().deleter

    def remove(table, names):
        entered.set()
        assert gate.wait(WAIT)
        return real(table, names)

    monkeypatch.setattr(BlockTable, "remove", remove)
    for key in chain(2):
        deleter.owe([block_name(key)])
    with ThreadPoolExecutor(2) as threads:
        paying = threads.submit(deleter.pay)
        assert entered.wait(WAIT)
        writing = threads.submit(write, tier, [stored(1, 0)], SIZE)
        # Its transaction is behind the delete of the first, and before that of the second.
        assert until(lambda: tier._threads.queued(IoKind.INDEX) == 1)
        gate.set()
        paying.result(WAIT)
        (content,) = writing.result(WAIT)
    assert read(tier, stored(1, 0), SIZE) == content
    assert tier.close(60)


def free_slots(tier: DiskTier) -> int:
    return tier._layout.laid_out().space.free_count


def until(holds) -> bool:
    end = time.monotonic() + WAIT
    while not holds() and time.monotonic() < end:
        time.sleep(0.001)
    return bool(holds())
