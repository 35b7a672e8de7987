"""What ends a process, at worst: an index cut off under it, a kill in the midst of a write, a fork."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from tests.tiers.helpers import (
    BLOCK,
    chain,
    open_tier,
    read,
    stored,
    write,
)


def run_python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since what is tested for is its death."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


READ_ALL = """
import sys
from kvstore.core.errors import DiskInvalid
from kvstore.tiers.disk import DiskTier
from tests.tiers.helpers import BLOCK, CAP, add_namespace, read, write, stored
try:
    disk = DiskTier.open(sys.argv[1], CAP)
except DiskInvalid as error:
    print("refused")
else:
    add_namespace(disk.names)
    disk.lay_out(BLOCK, 1)
    found = disk.found(BLOCK)
    print(len(found), sum(read(disk, key) is not None for key in found))
    try:
        write(disk, [stored(1000)])
    except Exception:
        print(disk.degraded_reason)
    disk.close()
"""


def test_case_4_18_an_index_that_was_cut_off_ends_nothing(tmp_path):
    with closing(open_tier(tmp_path / "whole")) as tier:
        for key in chain(30):
            write(tier, [key])
    size = (tmp_path / "whole" / "data.mdb").stat().st_size
    whole = 0
    for kept in range(0, size, size // 6 // 4096 * 4096):
        folder = tmp_path / str(kept)
        shutil.copytree(tmp_path / "whole", folder)
        os.truncate(folder / "data.mdb", kept)
        done = run_python(READ_ALL, folder)
        assert done.returncode == 0, (kept, done.stderr)
        if done.stdout[0].isdigit():
            found, good = map(int, done.stdout.splitlines()[0].split())
            assert good <= found <= 30
            whole = max(whole, good)
    assert 0 < whole <= 30


WRITE_ON = """
import sys
from tests.tiers.helpers import chain, open_tier, write
disk = open_tier(sys.argv[1])
keys = chain(4000)
for start in range(0, 4000, 8):
    write(disk, keys[start:start + 8])
    print(start + 8, flush=True)
"""


@pytest.mark.parametrize("batches", [1, 2, 5, 11, 23])
def test_a_killed_writer_leaves_whole_batches_and_all_that_it_reported(tmp_path, batches):
    command = [sys.executable, "-c", WRITE_ON, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(batches):
            reported = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        reported = int([str(reported), *writer.stdout.read().split()][-1])
    with closing(open_tier(tmp_path)) as tier:
        found = tier.found(BLOCK)
        assert found == chain(len(found))
        assert len(found) % 8 == 0
        assert len(found) >= reported
        assert all(read(tier, key) is not None for key in found)
        assert tier.counts.orphans == tier.counts.bad_entries == 0
        write(tier, [stored(9_000)])


FORK = """
import os, sys
from tests.tiers.helpers import chain, open_tier, read, write
disk = open_tier(sys.argv[1])
data = write(disk, chain(2))
assert read(disk, chain(2)[0]) == data[0]
if os.fork() == 0:
    sys.exit()
os.wait()
print(read(disk, chain(2)[1]) == data[1], write(disk, chain(1)) != [])
"""


def test_case_4_05_a_fork_that_ends_leaves_its_parent_alone(tmp_path):
    done = run_python(FORK, tmp_path)
    assert done.stdout == "True True\n", done.stderr
