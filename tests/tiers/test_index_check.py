"""The look at the index's pages before LMDB trusts them: silent about whatever LMDB leaves, and what it lets
pass ends no process."""

import random
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import lmdb
import numpy as np
import pytest

from kvstore.core.errors import DiskInvalid
from kvstore.core.types import NamespaceId, StoredSession, TenantId
from kvstore.tiers.disk_dump import check_index
from kvstore.tiers.disk_environment import DATA_FILE
from kvstore.tiers.disk_verify import verify
from kvstore.tiers.index_check import PageFault, check_pages
from kvstore.tiers.index_pages import PageFile, read_head
from tests.tiers.helpers import chain, key_of, open_tier, write
from tests.tiers.opening import BLOCK

CAP = 6 << 20
PAGE = 4096
# The last three end a process that opens the index unchecked, and writes: by SIGSEGV, and by SIGABRT twice.
FLIPS = [*range(45), 172, 232, 238]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has lived: branches, free pages, sessions of which some lie in overflow pages."""
    folder = tmp_path_factory.mktemp("made") / "disk"
    draw = random.Random(1)
    with closing(open_tier(folder, CAP, BLOCK)) as tier:
        for turn in range(40):
            first = draw.randrange(40) * 20
            write(tier, chain(20, first), BLOCK)
            tier.note_uses(chain(20, first))
            tier.keep_sessions([session(first, draw.choice([5, 60, 150]))])
            if turn % 3 == 2:
                tier.delete(chain(20, draw.randrange(40) * 20)[10:])
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "folder"))


def session(number: int, keys: int) -> StoredSession:
    return StoredSession(
        namespace=NamespaceId(1),
        tenant=TenantId(1),
        name=f"chat {number}",
        turn=1,
        keys=tuple(key_of(number + n) for n in range(keys)),
    )


def flip_a_bit(folder: Path, seed: int) -> None:
    """Every other one in pages that all hangs on, or that only a write follows; of each kind a third in the
    head of a page and the table of what is in it, where its nodes begin, anywhere."""
    draw = random.Random(seed)
    path = folder / DATA_FILE
    with PageFile(path) as file:
        head = read_head(file)
    assert head is not None
    data = bytearray(path.read_bytes())
    page = draw.choice([0, 1, head.free.root, head.main.root])
    if seed % 2:
        page = draw.randrange(len(data) // PAGE)
    upper = int.from_bytes(data[page * PAGE + 14 : page * PAGE + 16], sys.byteorder)
    first, reach = ((0, 200), (upper, 120), (0, PAGE))[seed % 3]
    data[page * PAGE + (first + draw.randrange(reach)) % PAGE] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def use(*folders: Path) -> list[str]:
    command = [sys.executable, "-m", "tests.tiers.opening", str(CAP), *map(str, folders)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_flipped_bit_ends_no_process(made, tmp_path):
    """A start works right or is refused, and what is refused is repaired."""
    folders = [Path(shutil.copytree(made, tmp_path / str(seed))) for seed in FLIPS]
    for seed, folder in zip(FLIPS, folders, strict=True):
        flip_a_bit(folder, seed)
    ends = use(*folders)
    assert {
        seed: end for seed, end in zip(FLIPS, ends, strict=True) if end not in ("served", "refused")
    } == {}
    refused = [folder for folder, end in zip(folders, ends, strict=True) if end == "refused"]
    assert ends[-3:] == ["refused"] * 3
    assert len(refused) < len(FLIPS)
    # The mark of kvstore itself may be what was hit: then a repair is refused, too.
    repaired = [folder for folder in refused if is_repaired(folder)]
    assert use(*repaired) == ["served"] * len(repaired)
    assert len(repaired) > len(refused) // 2


def is_repaired(folder: Path) -> bool:
    try:
        return verify(folder, repair=True, progress=lambda done, total: None).repaired
    except DiskInvalid:
        return False


def test_a_good_folder_is_passed_and_served(folder):
    check_index(folder)
    assert use(folder) == ["served"]
    check_index(folder)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_lmdb_leaves_is_good(tmp_path, seed):
    """Trees that grow and shrink by seed, also to nothing; records of no byte and of pages; free pages."""
    draw = random.Random(seed)
    names: list[set[bytes]] = [set(), set()]
    with lmdb.open(str(tmp_path), max_dbs=2, map_size=64 << 20, sync=False) as env:
        tables = [env.open_db(name) for name in (b"one", b"two")]
        for turn in range(60):
            grows = turn % 20 < 12
            with env.begin(write=True) as txn:
                for _ in range(draw.choice([1, 30, 400])):
                    which = draw.randrange(2)
                    if grows or not names[which]:
                        name = draw.randbytes(40 if which else draw.choice([1, 30, 500]))
                        txn.put(name, bytes(draw.choice([0, 12, 100, 2_030, 9_000])), db=tables[which])
                        names[which].add(name)
                    else:
                        name = (
                            draw.choice(sorted(names[which]))
                            if len(names[which]) < 50
                            else names[which].pop()
                        )
                        names[which].discard(name)
                        txn.delete(name, db=tables[which])
                if turn == 40:
                    txn.drop(tables[0], delete=False)
                    names[0].clear()
            check_pages(tmp_path / DATA_FILE)
        (tmp_path / "copy").mkdir()
        env.copy(str(tmp_path / "copy"), compact=True)
        check_pages(tmp_path / "copy" / DATA_FILE)


def words_of(path: Path, page: int) -> np.memmap:
    return np.memmap(path, np.uint64, "r+", offset=page * PAGE, shape=(PAGE // 8,))


def test_a_free_page_that_is_in_use_is_found_and_repaired(folder):
    """LMDB would read all there is, and overwrite it with the first write."""
    path = folder / DATA_FILE
    with PageFile(path) as file:
        head = read_head(file)
    assert head is not None
    assert head.free.depth == 1
    leaf = words_of(path, head.free.root)
    # What was put there last begins where the nodes do: its head, its key, how many pages, and which.
    upper = int(leaf.view(np.uint16)[7])
    node = leaf.view(np.uint8)[upper:]
    assert int(node[:2].view(np.uint16)[0]) >= 16
    node[24:32] = np.frombuffer(head.main.root.to_bytes(8, sys.byteorder), np.uint8)
    leaf.flush()
    with pytest.raises(PageFault, match="free"):
        check_pages(path)
    with pytest.raises(DiskInvalid, match="verify --repair") as refusal:
        check_index(folder)
    assert "free" in str(refusal.value)
    report = verify(folder, repair=True, progress=lambda done, total: None)
    assert (report.damages, report.repaired) == ({"index": 1}, True)
    assert use(folder) == ["served"]


@pytest.mark.parametrize("length", [0, 100, PAGE, 3 * PAGE, 50 * PAGE])
def test_a_file_cut_off_is_refused(folder, length):
    with (folder / DATA_FILE).open("r+b") as file:
        file.truncate(length)
    assert use(folder) == ["refused"]


def test_no_bytes_at_all_make_it_fail_otherwise(folder):
    draw = random.Random(7)
    path = folder / DATA_FILE
    whole = path.read_bytes()
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(draw.choice([1, 3, 20])):
            start = draw.randrange(len(data) // PAGE) * PAGE + draw.randrange(64)
            data[start : start + 8] = draw.choice([draw.randbytes(8), bytes(8), b"\xff" * 8])
        path.write_bytes(data)
        try:
            check_pages(path)
        except PageFault:
            continue
