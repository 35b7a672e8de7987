"""How much memory this process may have: the machine's, or less where a cgroup says so.

A container sees the whole machine in /proc/meminfo and is killed at its own limit all the same,
so both are read and the smaller one counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["memory_available_bytes", "memory_total_bytes"]

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def memory_total_bytes() -> int:
    """The memory that a share such as 50 % is a share of."""
    machine = int(psutil.virtual_memory().total)
    return min([machine, *(limit.limit_bytes for limit in _cgroup_limits())])


def memory_available_bytes() -> int:
    """What may still be allocated before anything is swapped out or killed."""
    machine = int(psutil.virtual_memory().available)
    return min([machine, *(limit.left_bytes for limit in _cgroup_limits())])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """The names of one cgroup version. Files that can be read again from disk count as free."""

    limit: str
    used: str
    reclaimable: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    limit_bytes: int
    left_bytes: int


_V2 = _Files(limit="memory.max", used="memory.current", reclaimable=("inactive_file", "active_file"))
_V1 = _Files(
    limit="memory.limit_in_bytes",
    used="memory.usage_in_bytes",
    reclaimable=("total_inactive_file", "total_active_file"),
)


def _cgroup_limits() -> Iterator[_Limit]:
    """The limits of this process's cgroup and of all above it; each of them binds."""
    try:
        lines = (PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, group = line.split(":", 2)
        if number == "0":
            root, files = CGROUPS, _V2
        elif "memory" in controllers.split(","):
            root, files = CGROUPS / "memory", _V1
        else:
            continue
        # In a container the path may be that of the host, which isn't mounted here: its own root is.
        folder = root / group.lstrip("/")
        for place in (folder, *folder.parents):
            limit = _read_limit(place, files)
            if limit is not None:
                yield limit
            if place == root:
                break


def _read_limit(folder: Path, files: _Files) -> _Limit | None:
    """None where the folder sets no limit (`max` in version 2, a huge number in version 1)."""
    try:
        limit = int((folder / files.limit).read_text())
        used = int((folder / files.used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    held = used - sum(int(stat.get(name, 0)) for name in files.reclaimable)
    return _Limit(limit_bytes=limit, left_bytes=max(0, limit - held))
