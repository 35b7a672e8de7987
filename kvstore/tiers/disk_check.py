"""What can be wrong with a block whose entry is good: its place, the bytes there, what it hangs on."""

import errno
import mmap
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from kvstore.tiers.disk_format import BlockEntry, Geometry, checksum_of, segment_name
from kvstore.tiers.disk_pieces import PIECE_BYTES
from kvstore.tiers.files import Files

__all__ = ["check_bytes", "check_places", "find_orphans"]

# Entries by block name.
Entries = Mapping[bytes, BlockEntry]
Run = list[tuple[bytes, BlockEntry]]
Faults = list[tuple[bytes, str]]

THREADS = 4
# Runs that are being read or wait for it.
RUNS_AHEAD = 2 * THREADS
# A file that can't be opened for these is as it should be.
NO_DAMAGE = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
# Namespace and tenant, at the beginning of a name.
DOMAIN_BYTES = 8


def check_places(entries: Entries, geometry: Geometry, segments: Sequence[int]) -> dict[bytes, str]:
    """By name, what is wrong with where a block should be. Of two in one slot the younger is right."""
    faults: dict[bytes, str] = {}
    there, taken = set(segments), dict[tuple[int, int], bytes]()
    for name, entry in sorted(entries.items(), key=lambda each: each[1].created_ns, reverse=True):
        if entry.segment not in there:
            faults[name] = f"{segment_name(entry.segment)} is missing"
        elif entry.slot >= geometry.segment_slots or not 0 < entry.size <= geometry.slot_bytes:
            faults[name] = f"slot {entry.slot}, {entry.size} bytes: there is no such slot"
        elif (entry.segment, entry.slot) in taken:
            faults[name] = f"another block has its slot: {taken[entry.segment, entry.slot].hex()}"
        else:
            taken[entry.segment, entry.slot] = name
    return faults


def check_bytes(
    folder: Path, files: Files, entries: Entries, geometry: Geometry, progress: Callable[[int, int], None]
) -> Iterator[tuple[bytes, str]]:
    """The blocks whose bytes are wrong or can't be read, and why. They are read in the order of the disk.

    OSError where this process can't open a segment, which says nothing of what is in it."""
    total, done = len(entries) * geometry.slot_bytes, 0
    fds: dict[int, int | OSError] = {}
    ahead: deque[tuple[int, Future[Faults]]] = deque()
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            for run in _runs(entries, geometry):
                segment = run[0][1].segment
                if segment not in fds:
                    fds[segment] = _open(folder, files, segment)
                ahead.append((len(run), pool.submit(_check_run, files, fds[segment], run, geometry)))
                if len(ahead) > RUNS_AHEAD:
                    count, faults = ahead.popleft()
                    yield from faults.result()
                    done += count * geometry.slot_bytes
                    progress(done, total)
            for _, faults in ahead:
                yield from faults.result()
        progress(total, total)
    finally:
        for fd in fds.values():
            if isinstance(fd, int):
                files.close(fd)


def find_orphans(entries: Entries) -> list[bytes]:
    """Those that hang, however far up, on a block that isn't there."""
    children: dict[bytes, list[bytes]] = {}
    reached: list[bytes] = []
    for name, entry in entries.items():
        if entry.parent:
            children.setdefault(name[:DOMAIN_BYTES] + entry.parent, []).append(name)
        else:
            reached.append(name)
    for name in reached:
        reached += children.pop(name, [])
    return list(set(entries).difference(reached))


def _runs(entries: Entries, geometry: Geometry) -> Iterator[Run]:
    """Neighbours in a segment, as many as one read takes."""
    run: Run = []
    most = max(1, PIECE_BYTES // geometry.slot_bytes)
    for name, entry in sorted(entries.items(), key=lambda each: (each[1].segment, each[1].slot)):
        if run:
            last = run[-1][1]
            if (entry.segment, entry.slot) != (last.segment, last.slot + 1) or len(run) == most:
                yield run
                run = []
        run.append((name, entry))
    if run:
        yield run


def _open(folder: Path, files: Files, segment: int) -> int | OSError:
    try:
        return files.open(folder / segment_name(segment))
    except OSError as error:
        if error.errno in NO_DAMAGE:
            raise
        return error


def _check_run(files: Files, fd: int | OSError, run: Run, geometry: Geometry) -> Faults:
    if isinstance(fd, OSError):
        return [(name, f"its segment can't be opened: {fd}") for name, _ in run]
    buffer = memoryview(mmap.mmap(-1, len(run) * geometry.slot_bytes))
    try:
        files.read(fd, [buffer], run[0][1].slot * geometry.slot_bytes)
    except OSError as error:
        if len(run) == 1:
            return [(run[0][0], f"can't be read: {error.strerror or error}")]
        return [fault for each in run for fault in _check_run(files, fd, [each], geometry)]
    faults: Faults = []
    for place, (name, entry) in enumerate(run):
        share = entry.size // geometry.ranks
        starts = range(place * geometry.slot_bytes, (place + 1) * geometry.slot_bytes, geometry.stride_bytes)
        if checksum_of(name, [buffer[start : start + share] for start in starts]) != entry.checksum:
            faults.append((name, "wrong checksum"))
    return faults
