"""Power loss, second half: the disks that it may leave, made from a record, opened and looked at.

What a disk may hold after a loss at some point: all that was synced by then; of what was not, any part, in
sectors of 4 KiB, in any order; a name that the folder wasn't synced for may be missing, or be there still; a
length likewise; the index as of the last commit that had returned, or of the one under way. Writes that
had begun and not returned count as not synced, whatever came after.

A state is drawn in one of several ways, because a loss that drops each sector by a coin leaves almost
nothing to chance: all kept, all lost, whole writes lost, sectors lost, the later ones kept and the earlier
lost.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TypeVar

from tests.tiers.power_record import Commit, Event, Inode, Log, Write

__all__ = ["COMMITS", "SECTOR_BYTES", "Draw", "Way", "restore"]

SECTOR_BYTES = 4096
# The site of LMDB's own syncs, which go past the door.
COMMITS = "index commits"
E = TypeVar("E", bound=Event)


class Way(Enum):
    KEPT = auto()
    LOST = auto()
    WRITES = auto()
    SECTORS = auto()
    REVERSED = auto()


@dataclass(frozen=True, slots=True)
class Draw:
    """Where the power went and how what was not synced fared: enough to make the same disk again."""

    point: int
    way: Way
    seed: int


def restore(log: Log, draw: Draw, folder: Path, ignored: Collection[str] = ()) -> None:
    """Makes the folder as the loss may have left it; syncs at the sites in `ignored` do not count."""
    chance = random.Random(f"{draw.seed} {draw.point} {draw.way}")
    folder.mkdir()
    for name, events in sorted(log.names.items()):
        syncs = [sync for sync in log.folder_syncs if sync.site not in ignored]
        candidates = _unsettled(events, syncs, draw.point)
        event = _choose(candidates, chance, draw.way)
        if event is not None and event.inode is not None:
            (folder / name).write_bytes(_content(event.inode, chance, draw, ignored))


def _content(inode: Inode, chance: random.Random, draw: Draw, ignored: Collection[str]) -> bytes:
    commit = _last_commit(inode.commits, chance, draw, COMMITS not in ignored)
    if commit is not None:
        return commit.image
    syncs = [sync for sync in inode.syncs if sync.site not in ignored]
    size = _choose(_unsettled(inode.sizes, syncs, draw.point), chance, draw.way)
    writes = [write for write in sorted(inode.writes, key=_begin) if write.begin < draw.point]
    content = bytearray(size.size_bytes if size is not None else 0)
    for write in writes:
        if _is_settled(write, syncs, draw.point) or (draw.way is Way.KEPT and write.end < draw.point):
            _put(content, write, 0, len(write.data))
        elif draw.way in (Way.WRITES, Way.REVERSED):
            later = write.end >= draw.point or write is writes[-1]
            if later if draw.way is Way.REVERSED else chance.random() < 0.5:
                _put(content, write, 0, len(write.data))
        elif draw.way is Way.SECTORS or (draw.way is Way.KEPT and write.end >= draw.point):
            for start in range(0, len(write.data), SECTOR_BYTES):
                if chance.random() < 0.5:
                    _put(content, write, start, start + SECTOR_BYTES)
    return bytes(content)


def _put(content: bytearray, write: Write, start: int, end: int) -> None:
    """A later write that is settled is put after the earlier ones that are not, so it wins."""
    piece = write.data[start:end]
    content.extend(bytes(max(0, write.offset + start - len(content))))
    content[write.offset + start : write.offset + start + len(piece)] = piece


def _last_commit(commits: Sequence[Commit], chance: random.Random, draw: Draw, synced: bool) -> Commit | None:
    """Commits do not overtake each other: what may be lost is the end of their row."""
    begun = [commit for commit in commits if commit.begin < draw.point]
    ended = [place for place, commit in enumerate(begun) if commit.end < draw.point]
    durable = [place for place in ended if synced and begun[place].durable]
    candidates = begun[durable[-1] if durable else 0 :]
    return _choose([*([] if durable else [None]), *candidates], chance, draw.way)


def _unsettled(events: Sequence[E], syncs: Sequence[Event], point: int) -> list[E | None]:
    """The last event that is sure to have reached the disk, None for none at all, and those after it."""
    begun = [event for event in sorted(events, key=_begin) if event.begin < point]
    settled = [place for place, event in enumerate(begun) if _is_settled(event, syncs, point)]
    return [*begun[settled[-1] :]] if settled else [None, *begun]


def _choose(candidates: Sequence[E | None], chance: random.Random, way: Way) -> E | None:
    if way is Way.LOST:
        return candidates[0]
    if way in (Way.KEPT, Way.REVERSED):
        return candidates[-1]
    return chance.choice(candidates)


def _is_settled(event: Event, syncs: Sequence[Event], point: int) -> bool:
    """A sync vouches for what had returned before it began, once it has returned itself."""
    return any(event.end < sync.begin and sync.end < point for sync in syncs)


def _begin(event: Event) -> int:
    return event.begin
