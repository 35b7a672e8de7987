"""A busy tier recorded, and losses of power drawn from the record: what the tests and `make crash` run."""

import random
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from kvstore.core.errors import KVStoreError
from kvstore.tiers.disk_dump import check_index
from tests.tiers.accounts import check_tier
from tests.tiers.power_record import Log, recorded
from tests.tiers.power_replay import Draw, Way, restore
from tests.tiers.promises import ABSENT, CHAIN, Broken, Deed
from tests.tiers.sized import CRASH_SIZES, Sizes, open_tier
from tests.tiers.workload import Workload

__all__ = ["draws", "fast_folder", "find_broken", "record", "replay"]

MEMORY = Path("/dev/shm")
VERSIONS = 1_000_000


class _Notes:
    def __init__(self, log: Log) -> None:
        self._log = log

    def begin(self, deed: Deed) -> None:
        deed.begin = self._log.tick()
        self._log.deeds.append(deed)

    def end(self, deed: Deed) -> None:
        deed.end = self._log.tick()


@contextmanager
def fast_folder() -> Iterator[Path]:
    """In memory where there is such a file system: what a sync costs is of no interest here."""
    where = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="kvstore-test-", dir=where) as path:
        yield Path(path)


def record(
    folder: Path, seed: int, *, steps: int, caps: Sequence[int], parts: int = 2, sizes: Sizes = CRASH_SIZES
) -> Log:
    """Work with a new folder, by so many threads at once; closed and opened again between, by these caps."""
    log: Log
    with recorded(folder) as log:
        # No two parts ever give a block the same version.
        works: list[Workload] = []
        for turn, cap in enumerate(caps):
            # What is too much goes when a folder is opened; the least recent, but any may be meant here.
            opening = Deed("delete", {number: ABSENT for work in works for number in work.blocks})
            _Notes(log).begin(opening)
            # Not before it has begun: whoever opens the folder by this cap, after a loss, deletes too.
            log.caps.append((log.tick(), cap))
            with closing(open_tier(folder, sizes, cap)) as tier:
                _Notes(log).end(opening)
                left = check_tier(tier, sizes, log.deeds, log.tick())
                works = [
                    Workload(
                        tier,
                        sizes,
                        100 * seed + 10 * turn + part,
                        _Notes(log),
                        {
                            number: version
                            for number, version in left.items()
                            if number // CHAIN % parts == part
                        },
                        1 + works[part].next_version if works else 1 + part * VERSIONS,
                        part=part,
                        parts=parts,
                    )
                    for part in range(parts)
                ]
                with ThreadPoolExecutor(parts) as threads:
                    for done in [threads.submit(work.run, steps // parts // len(caps)) for work in works]:
                        done.result()
    return log


def draws(log: Log, seed: int, count: int) -> Iterator[Draw]:
    """Anywhere, and more of them where a folder is made or opened: there it stands on one leg."""
    chance = random.Random(seed)
    for number in range(count):
        point = chance.randint(1, log.places + 1)
        if number % 3 == 0:
            point = chance.choice(log.caps)[0] + chance.randint(1, 80)
        yield Draw(point, chance.choice(list(Way)), seed * 1_000_000 + number)


def replay(log: Log, draw: Draw, ignored: Collection[str] = (), *, sizes: Sizes = CRASH_SIZES) -> None:
    """Broken where what the loss has left breaks a promise. `ignored`: sites of syncs that never were."""
    with fast_folder() as scratch:
        folder = scratch / "disk"
        restore(log, draw, folder, ignored)
        cap = max((place, cap) for place, cap in log.caps if place < draw.point or place == log.caps[0][0])[1]
        try:
            check_index(folder)
            tier = open_tier(folder, sizes, cap)
        except KVStoreError as error:
            raise Broken(f"{draw}: it does not start by itself: {error}") from error
        with closing(tier):
            try:
                check_tier(tier, sizes, log.deeds, draw.point)
            except Broken as error:
                raise Broken(f"{draw}: {error}") from error


def find_broken(log: Log, draws: Iterable[Draw], ignored: Collection[str] = ()) -> str:
    """What the first of these losses breaks that breaks a promise; empty where none does."""
    for draw in draws:
        try:
            replay(log, draw, ignored)
        except Broken as error:
            return str(error)
    return ""
