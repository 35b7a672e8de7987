"""Files damaged while nobody had them open: bits flipped, ranges zeroed; segments cut, missing, swapped, or
of another folder. What was not touched is served, nothing wrong is, and what is lost can be stored again.
"""

import os
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kvstore.core.errors import DiskInvalid
from kvstore.core.types import BlockKey
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.disk_environment import DATA_FILE
from tests.tiers.accounts import check_space, numbers_of
from tests.tiers.promises import stored_key
from tests.tiers.sized import Sizes, find_versions, open_tier
from tests.tiers.workload import Silent, Workload

SIZES = Sizes(9_000, 2)
SLOT_BYTES = SIZES.stride_bytes * SIZES.ranks
# Takes a folder and a source of chance; returns the files, with ranges of bytes in them, that it has touched.
Damage = Callable[[Path, random.Random], list[tuple[str, int, int]]]


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[int, int], dict[int, tuple[str, int]]]:
    """A folder that has lived, its blocks, and where each of them stands."""
    folder = tmp_path_factory.mktemp("whole") / "disk"
    with closing(open_tier(folder, SIZES)) as tier:
        work = Workload(tier, SIZES, 1, Silent(), {}, 1)
        work.run(120)
        places = places_of(tier, work.blocks)
    assert len({name for name, _ in places.values()}) > 5
    return folder, work.blocks, places


def places_of(tier: DiskTier, blocks: dict[int, int]) -> dict[int, tuple[str, int]]:
    """File and offset of each block."""
    assert tier._layout.storage is not None
    geometry = tier._layout.storage.geometry
    found = tier._table.read_index()[0]
    keys = {key.key: number for number in blocks for key in [stored_key(number)]}
    return {
        keys[BlockKey(name[8:])]: (f"segment-{segment:06}", slot * geometry.slot_bytes)
        for name, segment, slot in zip(
            found.names(), found.segment.tolist(), found.slot.tolist(), strict=True
        )
    }


def segments_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("segment-*"))


def flip_bits(folder: Path, chance: random.Random) -> list[tuple[str, int, int]]:
    touched = []
    for path in chance.sample(segments_of(folder), 3):
        raw = bytearray(path.read_bytes())
        at = chance.randrange(len(raw))
        raw[at] ^= 1 << chance.randrange(8)
        path.write_bytes(raw)
        touched.append((path.name, at, at + 1))
    return touched


def zero_a_range(folder: Path, chance: random.Random) -> list[tuple[str, int, int]]:
    path = chance.choice(segments_of(folder))
    raw = bytearray(path.read_bytes())
    start = chance.randrange(len(raw))
    end = min(len(raw), start + chance.choice((1, 4096, 3 * SLOT_BYTES)))
    raw[start:end] = bytes(end - start)
    path.write_bytes(raw)
    return [(path.name, start, end)]


def cut_off(folder: Path, chance: random.Random) -> list[tuple[str, int, int]]:
    path = chance.choice(segments_of(folder))
    size = path.stat().st_size
    left = chance.choice((0, 1, chance.randrange(size), size - 1, size // SLOT_BYTES // 2 * SLOT_BYTES))
    os.truncate(path, left)
    return [(path.name, left, size)]


def remove_one(folder: Path, chance: random.Random) -> list[tuple[str, int, int]]:
    path = chance.choice(segments_of(folder))
    size = path.stat().st_size
    path.unlink()
    return [(path.name, 0, size)]


def swap_two(folder: Path, chance: random.Random) -> list[tuple[str, int, int]]:
    one, two = chance.sample(segments_of(folder), 2)
    size = max(one.stat().st_size, two.stat().st_size)
    spare = folder / "spare"
    one.rename(spare)
    two.rename(one)
    spare.rename(two)
    return [(one.name, 0, size), (two.name, 0, size)]


def turn_into_a_folder(folder: Path, chance: random.Random) -> list[tuple[str, int, int]]:
    path = chance.choice(segments_of(folder))
    size = path.stat().st_size
    path.unlink()
    path.mkdir()
    return [(path.name, 0, size)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "damage",
    [flip_bits, zero_a_range, cut_off, remove_one, swap_two, turn_into_a_folder],
    ids=lambda damage: damage.__name__,
)
def test_what_was_not_touched_is_served_and_the_rest_can_be_stored_again(
    whole: tuple[Path, dict[int, int], dict[int, tuple[str, int]]], tmp_path: Path, damage: Damage, seed: int
) -> None:
    source, blocks, places = whole
    folder = tmp_path / "disk"
    shutil.copytree(source, folder)
    touched = damage(folder, random.Random(seed))
    lost = {
        number
        for number, (name, offset) in places.items()
        for where, start, end in touched
        if name == where and offset < end and start < offset + SLOT_BYTES
    }
    with closing(open_tier(folder, SIZES)) as tier:
        found = find_versions(tier, SIZES, {number: {version} for number, version in blocks.items()})
        safe = set(blocks) - lost
        assert set(found) >= safe
        if damage is not flip_bits and damage is not zero_a_range:
            # All else was touched between the blocks, or behind the bytes of one.
            assert set(found) <= set(blocks)
        check_space(tier)
        gone = sorted(set(blocks) - set(found))
        assert tier.counts.bad_entries + tier.counts.read_errors >= len(gone)
        for number in gone:
            tier.write([stored_key(number)], SIZES.filled({number: blocks[number]}))
        everything = {number: {version} for number, version in blocks.items()}
        assert find_versions(tier, SIZES, everything) == blocks
        check_space(tier)


def test_the_index_of_another_folder_serves_none_of_its_blocks(
    whole: tuple[Path, dict[int, int], dict[int, tuple[str, int]]], tmp_path: Path
) -> None:
    source, _, _ = whole
    folder, other = tmp_path / "disk", tmp_path / "other"
    shutil.copytree(source, folder)
    with closing(open_tier(other, SIZES)) as tier:
        work = Workload(tier, SIZES, 2, Silent(), {}, 1_000_000)
        work.run(120)
    shutil.copy(other / DATA_FILE, folder / DATA_FILE)
    with closing(open_tier(folder, SIZES)) as tier:
        assert (
            find_versions(tier, SIZES, {number: {version} for number, version in work.blocks.items()}) == {}
        )
        assert tier.found(SIZES.all_bytes) == []
        check_space(tier)
        tier.write([stored_key(0)], SIZES.filled({0: 1}))
        assert find_versions(tier, SIZES, {0: {1}}) == {0: 1}


def test_segments_of_another_folder_serve_none_of_its_blocks(
    whole: tuple[Path, dict[int, int], dict[int, tuple[str, int]]], tmp_path: Path
) -> None:
    source, blocks, _ = whole
    folder, other = tmp_path / "disk", tmp_path / "other"
    shutil.copytree(source, folder)
    with closing(open_tier(other, SIZES)) as tier:
        Workload(tier, SIZES, 2, Silent(), {}, 1_000_000).run(120)
    for path in segments_of(other):
        shutil.copy(path, folder / path.name)
    with closing(open_tier(folder, SIZES)) as tier:
        found = find_versions(tier, SIZES, {number: {version} for number, version in blocks.items()})
        assert len(found) < len(blocks)
        assert set(numbers_of(tier.found(SIZES.all_bytes), blocks)) <= set(found)
        check_space(tier)


def test_a_folder_of_the_format_before_is_refused_until_it_may_be_wiped(tmp_path: Path) -> None:
    """As an older build would have left it: bytes and all in the index."""
    folder = tmp_path / "disk"
    with closing(open_tier(folder, SIZES)) as tier:
        tier.write([stored_key(0)], SIZES.filled({0: 1}))
        with tier._table._env.begin(write=True) as txn:
            txn.put(b"format", (2).to_bytes(4), db=tier._table._tables["meta"])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(DiskInvalid, match="format 2"):
        open_tier(folder, SIZES)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {**after, "kvstore.lock": b"", "lock.mdb": b""} == {**before, "kvstore.lock": b"", "lock.mdb": b""}
    with closing(open_tier(folder, SIZES, wipe_incompatible=True)) as tier:
        assert tier.found(SIZES.all_bytes) == []
        tier.write([stored_key(0)], SIZES.filled({0: 1}))
        check_space(tier)
