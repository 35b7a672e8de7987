"""What happened to a frame, in words: of the log of a run the lines that have to do with it."""

from collections.abc import Collection

from kvstore.sim.records import Log
from kvstore.sim.story_lines import Line, Teller
from kvstore.sim.wrong import Place

__all__ = ["tell"]

LINES_MAX = 60


def tell(log: Log, places: Collection[Place]) -> list[str]:
    """The story of these frames, and of those that their bytes came from. Without any named: of what the
    last event was about."""
    teller = Teller()
    records = [list(teller.lines(record)) for record in log]
    lines = [line for record in records for line in record]
    subject = frozenset(places) or _last_places(records)
    return [f"{line.time:9.4f}  {line.text}" for line in _concerned(lines, subject)[-LINES_MAX:]]


def _concerned(lines: list[Line], subject: frozenset[Place]) -> list[Line]:
    """Backwards from the end: where a frame was filled from another, that one's story before it counts,
    up to the point where it was given out."""
    followed = set(subject)
    told: list[Line] = []
    for line in reversed(lines):
        if line.places and followed.isdisjoint(line.places):
            continue
        told.append(line)
        if not line.places or line.places[0] not in followed:
            continue
        if line.filled_from is not None or line.is_grant:
            followed -= {line.places[0]} - subject
        if line.filled_from is not None:
            followed.add(line.filled_from)
    return told[::-1]


def _last_places(records: list[list[Line]]) -> frozenset[Place]:
    for record in reversed(records):
        places = frozenset(place for line in record for place in line.places)
        if places:
            return places
    return frozenset()
