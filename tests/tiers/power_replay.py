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
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TypeVar

from tests.tiers.power_record import Commit, Event, Inode, Log, Write

__all__ = ["SECTOR_BYTES", "Draw", "Way", "restore"]

SECTOR_BYTES = 4096
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


def restore(log: Log, draw: Draw, folder: Path) -> None:
    """Makes the folder as the loss may have left it."""
    chance = random.Random(f"{draw.seed} {draw.point} {draw.way}")
    folder.mkdir()
    for name, events in sorted(log.names.items()):
        candidates = _unsettled(events, log.folder_syncs, draw.point)
        event = _choose(candidates, chance, draw.way)
        if event is not None and event.inode is not None:
            (folder / name).write_bytes(_content(event.inode, chance, draw))


def _content(inode: Inode, chance: random.Random, draw: Draw) -> bytes:
    if inode.commits:
        return _index(inode.commits, chance, draw)
    size = _choose(_unsettled(inode.sizes, inode.syncs, draw.point), chance, draw.way)
    writes = [write for write in sorted(inode.writes, key=_begin) if write.begin < draw.point]
    content = bytearray(size.size_bytes if size is not None else 0)
    for write in writes:
        if _is_settled(write, inode.syncs, draw.point):
            _put(content, write, 0, len(write.data))
        elif draw.way is Way.KEPT and write.end < draw.point:
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


def _index(commits: Sequence[Commit], chance: random.Random, draw: Draw) -> bytes:
    """Commits do not overtake each other: what may be lost is the end of their row."""
    begun = [commit for commit in commits if commit.begin < draw.point]
    durable = [place for place, commit in enumerate(begun) if commit.durable and commit.end < draw.point]
    candidates = begun[durable[-1] if durable else 0 :]
    chosen = _choose([*([] if durable else [None]), *candidates], chance, draw.way)
    return chosen.image if chosen is not None else b""


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
