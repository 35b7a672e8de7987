"""What a journal cannot tell: what was overwritten, what was not written any more, and what is more than is
remembered."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.timestamp_pb2 import Timestamp

from kvstore.cli.explain_figures import moment
from kvstore.cli.texts import counted

if TYPE_CHECKING:
    from kvstore.observe.reading import Run
    from kvstore.observe.recalling import Recalled

__all__ = ["TimeOf", "gaps_after", "gaps_before", "gaps_in"]

# A moment of a run's clock on the wall.
TimeOf = Callable[[float], Timestamp]


def gaps_before(path: Path, run: "Run", time_of: TimeOf) -> Iterator[str]:
    """Of a folder, before its first run. A segment that was named alone has nothing before it."""
    missing = int(run.segments[0].stem) - 1 if path.is_dir() else 0
    if missing and run.whole:
        begun = moment(time_of(run.heading.start_time))
        yield (
            f"Known from {begun} UTC on. What was decided before isn't known: "
            + (
                "a segment of the journal is overwritten."
                if missing == 1
                else f"{counted(missing, 'segment')} of the journal are overwritten."
            )
        )


def gaps_after(unread: Sequence[Path]) -> Iterator[str]:
    """`unread`: segments that belong to no run, for they have no heading."""
    for segment in unread:
        yield (
            f"{segment.name} holds no whole record: the service that began to write it was killed, or has "
            "only just begun. What it decided isn't known."
        )


def gaps_in(run: "Run", recalled: "Recalled", kind: str, time_of: TimeOf) -> Iterator[str]:
    """`kind`: the only one that is asked for; empty: all are."""
    begun = moment(time_of(run.heading.start_time))
    if not run.whole:
        kept = moment(time_of(recalled.begin))
        yield (
            f"Of the run that began at {begun} UTC something is known from {kept} UTC on. What was decided "
            "before isn't known: the beginning of its journal is overwritten. Of what was decided after it, "
            "only swaps and drops that engines asked for are known: loads, evictions, writes to disk, and "
            "what the store moved by itself, are found by replaying a run from its beginning."
        )
    for each, remembered in recalled.store.memory.decisions.notes.items():
        if kind in ("", each) and len(remembered) == remembered.maxlen:
            since = moment(time_of(remembered[0].decision.time))
            yield (
                f"Of the kind {each} the last {remembered.maxlen:,} of the run that began at {begun} UTC are "
                f"remembered, from {since} UTC on."
            )
    if run.torn:
        yield (
            f"Known until {moment(time_of(recalled.end))} UTC: {run.torn}. What was decided after that in "
            "this run isn't known: its service was killed, or is writing still."
        )
