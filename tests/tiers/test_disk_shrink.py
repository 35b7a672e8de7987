"""Less room than before: the least recent go, the others come below the cap, the disk gets its own back."""

import errno
import os
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from kvstore.tiers.disk import DiskWriteFailed, ReadOutcome
from kvstore.tiers.disk_format import segment_name
from kvstore.tiers.disk_table import BlockTable
from kvstore.tiers.disk_verify import verify
from kvstore.tiers.files import DirectFiles
from tests.tiers.accounts import check_space, slots_in_index
from tests.tiers.helpers import (
    CAP,
    chain,
    change_bytes,
    frames,
    open_tier,
    place_of,
    read,
    stored,
    taken_bytes,
    write,
)

SIZE, SLOT = 100_000, 102_400


def make(folder: Path, count: int, cap: int = CAP) -> dict[int, bytes]:
    """Chains of ten, each used after the one before it."""
    with closing(open_tier(folder, cap, SIZE)) as tier:
        data: dict[int, bytes] = {}
        for first in range(0, count, 10):
            data |= zip(range(first, first + 10), write(tier, chain(10, first), SIZE), strict=True)
    return data


def numbers(tier) -> list[int]:
    by_key = {key.key: number for number, key in enumerate([stored(n) for n in range(1_000)])}
    return [by_key[key.key] for key in tier.found(SIZE)]


@pytest.mark.parametrize("cap", [4 << 20, 5_000_000, 16 << 20])
def test_the_most_recent_stay_and_the_cap_holds_before_anything_is_served(tmp_path, cap):
    data = make(tmp_path, 400)
    assert taken_bytes(tmp_path) > 40_000_000
    with closing(open_tier(tmp_path, cap, SIZE)) as tier:
        assert taken_bytes(tmp_path) <= cap
        capacity = tier.capacity_blocks(SIZE, 1)
        kept = numbers(tier)
        assert len(kept) == capacity == tier.held_blocks
        # Whole chains from the end, and the head of one more.
        assert kept[-(capacity // 10 * 10) :] == list(range(400 - capacity // 10 * 10, 400))
        assert all(read(tier, stored(n), SIZE) == data[n] for n in kept)
        tier.delete([stored(kept[-1])])
        write(tier, [stored(900)], SIZE)
        assert taken_bytes(tmp_path) <= cap
    with closing(open_tier(tmp_path, CAP, SIZE)) as tier:
        for first in range(500, 800, 10):
            write(tier, chain(10, first), SIZE)
        assert all(read(tier, stored(n), SIZE) == data[n] for n in kept[:-1])


def test_used_ones_stay(tmp_path):
    data = make(tmp_path, 100)
    with closing(open_tier(tmp_path, CAP, SIZE)) as tier:
        tier.note_uses(chain(10, 20))
    with closing(open_tier(tmp_path, 4 << 20, SIZE)) as tier:
        assert numbers(tier)[-10:] == list(range(20, 30))
        assert all(read(tier, stored(n), SIZE) == data[n] for n in range(20, 30))


def test_a_bad_block_is_not_moved(tmp_path):
    make(tmp_path, 100)
    change_bytes(tmp_path, stored(99), SLOT, lambda value: b"?" * len(value))
    with closing(open_tier(tmp_path, 4 << 20, SIZE)) as tier:
        assert tier.counts.bad_entries == 1
        assert numbers(tier)[-9:] == list(range(90, 99))
        assert read(tier, stored(99), SIZE) is None


def test_a_sector_that_cannot_be_read_costs_one_block(tmp_path):
    class BadSector(DirectFiles):
        def read(self, fd, parts, offset):
            if (os.fstat(fd).st_ino, offset) == bad:
                raise OSError(errno.EIO, "Input/output error")
            super().read(fd, parts, offset)

    data = make(tmp_path, 100)
    path, offset = place_of(tmp_path, stored(95), SLOT)
    bad = (path.stat().st_ino, offset)
    with closing(open_tier(tmp_path, 4 << 20, SIZE, files=BadSector())) as tier:
        assert numbers(tier)[-5:] == list(range(90, 95))
        assert [read(tier, stored(n), SIZE) for n in range(90, 95)] == [data[n] for n in range(90, 95)]
        assert tier.counts.bad_entries == 1


def test_blocks_that_cannot_be_moved_are_given_up_and_the_cap_holds(tmp_path):
    class Fails(DirectFiles):
        def write(self, fd, parts, offset):
            raise OSError("I/O error")

    make(tmp_path, 100)
    with closing(open_tier(tmp_path, 4 << 20, SIZE, files=Fails())) as tier:
        assert taken_bytes(tmp_path) <= 4 << 20
        assert len(tier.found(SIZE)) == tier.held_blocks


def test_a_disk_that_takes_nothing_any_more_keeps_all_and_serves_it(tmp_path, monkeypatch):
    def fails(*_):
        raise lmdb.DiskError("read-only")

    data = make(tmp_path, 100)
    for name in ("put", "remove"):
        monkeypatch.setattr(BlockTable, name, fails)
    with closing(open_tier(tmp_path, 4 << 20, SIZE)) as tier:
        kept = numbers(tier)
        assert len(kept) == tier.capacity_blocks(SIZE, 1)
        outs = [frames(SIZE) for _ in kept]
        assert tier.read([stored(n, n - 1 if n % 10 else None) for n in kept], outs) == [
            ReadOutcome.GOOD
        ] * len(kept)
        assert [out[0].tobytes() for out in outs] == [data[n] for n in kept]


def test_an_index_that_has_grown_too_long_is_written_anew(tmp_path):
    """Small blocks: the index is most of what there is."""
    with closing(open_tier(tmp_path, CAP, 1)) as tier:
        for first in range(0, 8_000, 500):
            write(tier, chain(500, first), 1)
    index = (tmp_path / "data.mdb").stat().st_size
    with closing(open_tier(tmp_path, 4 << 20, 1)) as tier:
        assert (tmp_path / "data.mdb").stat().st_size < index / 4
        assert taken_bytes(tmp_path) <= 4 << 20
        found = tier.found(1)
        assert len(found) == tier.capacity_blocks(1, 1)
        assert all(outcome is ReadOutcome.GOOD for outcome in tier.read(found, [frames(1) for _ in found]))
        tier.delete(found[-5:])
        write(tier, found[-5:], 1)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []


def test_what_a_start_that_ended_half_way_has_left_is_removed(tmp_path):
    make(tmp_path, 10)
    for name in ("compacting", "repairing"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.mdb").write_bytes(bytes(100_000))
    with closing(open_tier(tmp_path, CAP, SIZE)) as tier:
        assert len(tier.found(SIZE)) == 10
    assert not any(path.is_dir() for path in tmp_path.iterdir())


def test_more_blocks_than_one_transaction_deletes_are_durably_gone(tmp_path, caplog):
    """When the map of the index is no larger yet than the index is: what a transaction copies finds room."""
    with closing(open_tier(tmp_path, CAP, 16 << 10)) as tier:
        for first in range(0, 2_000, 500):
            write(tier, chain(500, first), 16 << 10)
            tier.note_uses(chain(500, first))
    with closing(open_tier(tmp_path, 16 << 20, 16 << 10)) as tier:
        kept = tier.found(16 << 10)
        assert len(kept) == tier.held_blocks == tier.capacity_blocks(16 << 10, 1) < 1_000
        check_space(tier)
        assert taken_bytes(tmp_path) <= 16 << 20
    assert "not deleted" not in caplog.text
    report = verify(tmp_path, repair=False, progress=lambda done, total: None)
    assert report.is_good
    assert report.blocks_good == len(kept)


class Stubborn:
    """A table from which the blocks of some places of a start's deletions can't be removed."""

    def __init__(self, monkeypatch, after: int) -> None:
        self.calls, self.after, self.remove = 0, after, BlockTable.remove
        monkeypatch.setattr(BlockTable, "remove", lambda table, names: self._remove(table, names))

    def _remove(self, table, names):
        self.calls += 1
        if self.calls > self.after:
            raise lmdb.MapFullError("full")
        return self.remove(table, names)


@pytest.mark.parametrize("after", [0, 1])
def test_what_could_not_be_deleted_keeps_its_slot_and_its_segment(tmp_path, monkeypatch, after):
    """Till it is deleted: no other block takes the place that its entry names."""
    monkeypatch.setattr("kvstore.tiers.disk_start.REMOVE_MAX", 50)
    make(tmp_path, 200)
    with monkeypatch.context() as patched:
        stubborn = Stubborn(patched, after)
        with closing(open_tier(tmp_path, 8 << 20, SIZE)) as tier:
            kept = numbers(tier)
            assert len(kept) == tier.capacity_blocks(SIZE, 1) < 100
            check_space_of_those_that_fit(tier)
            with pytest.raises(DiskWriteFailed):
                write(tier, chain(10, 500), SIZE)
            assert stubborn.calls > after
    report = verify(tmp_path, repair=False, progress=lambda done, total: None)
    assert report.is_good, report.damages
    assert report.blocks_good == 200 - 50 * after
    # And so they are at the next start.
    with closing(open_tier(tmp_path, 8 << 20, SIZE)) as tier:
        assert numbers(tier) == kept
        check_space(tier)
        assert taken_bytes(tmp_path) <= 8 << 20
    assert verify(tmp_path, repair=False, progress=lambda done, total: None).is_good


def test_what_could_not_be_deleted_at_the_start_is_deleted_later_and_makes_room(tmp_path, monkeypatch):
    make(tmp_path, 200)
    with monkeypatch.context() as patched:
        Stubborn(patched, 0)
        tier = open_tier(tmp_path, 8 << 20, SIZE)
    with closing(tier):
        kept = numbers(tier)
        assert tier.settle()
        assert tier.held_blocks == len(kept)
        tier.delete([stored(n) for n in kept])
        new = [stored(500 + n) for n in range(20)]
        data = write(tier, new, SIZE)
        assert [read(tier, key, SIZE) for key in new] == data
    assert verify(tmp_path, repair=False, progress=lambda done, total: None).is_good


def test_what_a_bad_entry_names_is_not_filled_while_it_is_there(tmp_path, monkeypatch):
    """A segment is missing, and its blocks can't be taken off the index: it is made anew, without them."""
    make(tmp_path, 100)
    (tmp_path / segment_name(0)).unlink()
    with monkeypatch.context() as patched:
        Stubborn(patched, 0)
        with closing(open_tier(tmp_path, CAP, SIZE)) as tier:
            held = len(tier.found(SIZE))
            assert held < 100
            for first in range(1_000, 2_000, 10):
                try:
                    write(tier, chain(10, first), SIZE)
                except DiskWriteFailed:
                    break
            assert tier.held_blocks > 500
            slots = slots_in_index(tier)
            assert len(slots) == len(set(slots))


def test_moves_of_which_nothing_is_known_leave_both_places_alone(tmp_path, monkeypatch):
    """The transaction failed, and is durable all the same; and then nothing can be deleted."""
    data = make(tmp_path, 100)
    with closing(open_tier(tmp_path, CAP, SIZE)) as tier:
        tier.delete([stored(number) for number in range(40)])
    put = BlockTable.put

    def fails(table, rows, geometry, blocks):
        put(table, rows, geometry, blocks)
        raise lmdb.DiskError("I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(BlockTable, "put", fails)
        Stubborn(patched, 0)
        tier = open_tier(tmp_path, 8 << 20, SIZE)
    with closing(tier):
        assert tier.held_blocks == len(tier.found(SIZE)) == 60
        for number in range(500, 560):
            try:
                write(tier, [stored(number)], SIZE)
            except DiskWriteFailed:
                break
        slots = slots_in_index(tier)
        assert len(slots) == len(set(slots))
        assert all(read(tier, key, SIZE) in (None, *data.values()) for key in chain(100))
    assert verify(tmp_path, repair=False, progress=lambda done, total: None).is_good


def check_space_of_those_that_fit(tier) -> None:
    """As `check_space`, where entries stand behind the cap."""
    space = tier._layout.storage.space
    slots = slots_in_index(tier)
    places = [segment * space.geometry.segment_slots + slot for segment, slot in slots]
    assert len(slots) == len(set(slots)) == tier.held_blocks
    assert space.free_count + sum(place < space.slot_count for place in places) == space.slot_count
