"""A loss of power at any point breaks no promise; and it would without any one of the syncs, or without the
rule for slots that are used again. SIGKILL can't show that: what was written and not synced survives it.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from kvstore.tiers import disk_storage
from kvstore.tiers.disk_deleting import Deleter
from kvstore.tiers.disk_format import BlockEntry, Geometry
from kvstore.tiers.disk_space import Space
from kvstore.tiers.disk_table import BlockTable
from kvstore.tiers.disk_tickets import Ticket
from kvstore.tiers.disk_writing import Batch, BlockWriter, Pace
from tests.tiers import power
from tests.tiers.power_record import Log
from tests.tiers.power_replay import COMMITS, Draw, Way
from tests.tiers.sized import CAP

STEPS = 300
# A folder at its cap, and one whose cap becomes smaller than what is there, and larger again.
# And one whose index is written anew each time that it is opened.
LIVES = {"full": (CAP, CAP, CAP), "shrunk": (2 * CAP, CAP, 2 * CAP), "compacted": (CAP, CAP, CAP)}
FIT_INDEX = disk_storage._fit_index
SEEDS = 2
# What a proof by leaving out has to find its fault in.
LOSSES_WITHOUT = 300

# Syncs whose loss breaks no promise, and why they are made all the same.
LENGTH = "A segment's length comes with the first sync of what is written to it; with this that costs less."
NAMED_BEFORE = "The name was there before."
FOUND_AGAIN = "A segment that comes back is found and removed again."
IN_SYNC_FOLDER = "fsync of the folder in sync_folder < "
NOT_FOR_SAFETY = {
    "fsync of a file in DirectFiles.create": LENGTH,
    IN_SYNC_FOLDER + "DirectFiles.create < Segments.shorten": NAMED_BEFORE,
    IN_SYNC_FOLDER + "DirectFiles.create < Segments._resize": NAMED_BEFORE,
    IN_SYNC_FOLDER + "DirectFiles.remove": FOUND_AGAIN,
}


def recorded(seed: int, life: str) -> Log:
    with pytest.MonkeyPatch.context() as patch, power.fast_folder() as scratch:
        if life == "compacted":
            patch.setattr(disk_storage, "_fit_index", fit_and_compact)
        return power.record(scratch / "disk", seed, steps=STEPS, caps=LIVES[life])


def fit_and_compact(folder: Path, table: BlockTable, geometry: Geometry, cap_bytes: int, count: int) -> int:
    """What is done for an index that has grown too long, which takes many more blocks than there are here."""
    table.compact()
    return FIT_INDEX(folder, table, geometry, cap_bytes, count)


@pytest.fixture(scope="module", params=[(seed, life) for seed in range(SEEDS) for life in LIVES], ids=str)
def log(request: pytest.FixtureRequest) -> Log:
    return recorded(*request.param)


def test_a_loss_of_power_at_any_point_breaks_no_promise(log: Log, request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--power-losses") // (SEEDS * len(LIVES))
    assert power.find_broken(log, power.draws(log, 1, count)) == ""


def first_moments() -> tuple[Log, list[Draw]]:
    """A folder is made and written to; losses at each place of that, in each way that leaves things open."""
    with power.fast_folder() as scratch:
        log = power.record(scratch / "disk", 0, steps=4, caps=[CAP])
    ways = (Way.LOST, Way.WRITES, Way.SECTORS, Way.REVERSED)
    # More of the first ones, where chance has the most to say.
    draws = [
        Draw(point, way, seed)
        for point in range(1, min(log.places, 90))
        for way in ways
        for seed in range(4 if point < 30 else 1)
    ]
    random.Random(0).shuffle(draws)
    return log, draws


def draws_behind(log: Log, site: str) -> Iterator[Draw]:
    """Losses soon after the syncs that are made there, where little else was synced since; then anywhere."""
    chance = random.Random(site)
    ends = [sync.end for sync in log.syncs() if sync.site == site]
    for number in range(LOSSES_WITHOUT if ends else 0):
        yield Draw(
            chance.choice(ends) + chance.randint(0, chance.choice((5, 60))), chance.choice(list(Way)), number
        )
    yield from power.draws(log, 1, LOSSES_WITHOUT)


def test_a_loss_in_the_first_moments_of_a_folder_needs_no_help() -> None:
    """Files have names that are not durable yet, and the index has first pages that may be torn."""
    log, draws = first_moments()
    assert power.find_broken(log, draws) == ""


def test_without_any_one_of_the_syncs_a_promise_is_broken() -> None:
    """Each is named by the way that leads to it, as it was seen; a new one is asked for like the others."""
    first, moments = first_moments()
    logs = [recorded(0, life) for life in LIVES]
    sites = set().union(*(log.sites() for log in (first, *logs))) | {COMMITS}
    needed = {site for site in sites if not any(site.startswith(name) for name in NOT_FOR_SAFETY)}
    assert len(needed) >= 6
    for site in sorted(needed):
        if site not in first.sites() | {COMMITS} or not power.find_broken(first, moments, {site}):
            of_site = [log for log in logs if site in log.sites()]
            assert any(power.find_broken(log, draws_behind(log, site), {site}) for log in of_site), site


# -------------------------------------------------------------------- slots used again


class FreeAtOnce:
    """A tier that gives slots back before the transaction that frees them is durable."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._early: set[int] = set()
        self._really_give = Space.give
        patch.setattr(Space, "give", lambda space, slots: self._give_once(space, slots))

    def give_early(self, space: Space, table: BlockTable, names: Iterable[bytes]) -> None:
        named = list(names)
        found = [(name, record) for name, record in zip(named, table.find(named), strict=True) if record]
        slots = {space.slot_of(BlockEntry.unpack(*each)) for each in found} - self._early
        self._early |= slots
        self._really_give(space, slots)

    def _give_once(self, space: Space, slots: Iterable[int]) -> None:
        given = set(slots)
        late = given - self._early
        self._early -= given
        self._really_give(space, late)


def free_replaced_at_once(patch: pytest.MonkeyPatch) -> None:
    """Of blocks that are stored again: before their new bytes are written."""
    early, write = FreeAtOnce(patch), BlockWriter.write

    def write_over(self: BlockWriter, batch: Batch, block_bytes: int, pace: Pace, ticket: Ticket) -> None:
        early.give_early(self._space, self._table, batch)
        write(self, batch, block_bytes, pace, ticket)

    patch.setattr(BlockWriter, "write", write_over)


def free_deleted_at_once(patch: pytest.MonkeyPatch) -> None:
    """And the transaction follows with the next one, as if to save a commit."""
    early, commit = FreeAtOnce(patch), BlockWriter._commit

    def delete(self: Deleter, names: Sequence[bytes]) -> None:
        early.give_early(self._space, self._table, names)
        self.owe(names)

    def commit_both(self: BlockWriter, entries: Mapping[bytes, BlockEntry], slots: Sequence[int]) -> None:
        with self._deleter._lock:
            owed = [name for part in self._deleter._owed for name in part]
            self._deleter._owed.clear()
        self._deleter._remove(dict.fromkeys(owed))
        commit(self, entries, slots)

    patch.setattr(Deleter, "delete", delete)
    patch.setattr(Deleter, "pay", lambda self: None)
    patch.setattr(BlockWriter, "_commit", commit_both)


@pytest.mark.parametrize("plant", [free_replaced_at_once, free_deleted_at_once])
def test_with_slots_free_at_once_a_promise_is_broken(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    """One works alone here, so that it is the loss of power that shows it and no other thread."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with power.fast_folder() as scratch:
            log = power.record(scratch / "disk", 0, steps=STEPS, caps=[CAP], parts=1)
    assert power.find_broken(log, power.draws(log, 1, LOSSES_WITHOUT))
