"""A folder that `kvstore verify` looks at, and what is left of it."""

import os
import stat
from contextlib import closing
from pathlib import Path

from kvstore.tiers.disk import ReadOutcome
from kvstore.tiers.disk_verify import Report, verify
from tests.tiers.helpers import (
    BLOCK,
    frames,
    open_tier,
    stored,
    taken_bytes,
    write,
)

SMALL = 5 << 20


COUNT = 120


def make_socket(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFSOCK)


def look(folder: Path, *, repair: bool = False) -> Report:
    return verify(folder, repair=repair, progress=lambda done, total: None)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def check_repaired(folder: Path, good: int) -> None:
    """All that is left is served, and there is room for all else."""
    assert look(folder).is_good
    with closing(open_tier(folder, SMALL)) as tier:
        found = tier.found(BLOCK)
        assert len(found) == good
        outcomes = tier.read(found, [frames() for _ in found])
        assert outcomes == [ReadOutcome.GOOD] * good
        assert tier.counts.bad_entries == tier.counts.orphans == 0
        room = tier.capacity_blocks(BLOCK, 1) - good
        write(tier, [stored(5_000 + n) for n in range(room)])
    assert taken_bytes(folder) <= SMALL
    assert look(folder).is_good
