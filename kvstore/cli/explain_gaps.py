"""What a journal can't tell: what was overwritten, and what its writer did not live to write."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.timestamp_pb2 import Timestamp

from kvstore.cli.explain_figures import moment
from kvstore.cli.texts import counted

if TYPE_CHECKING:
    from kvstore.observe.reading import Run
    from kvstore.observe.recalling import Recalled

__all__ = ["TimeOf", "gaps_before", "gaps_in"]

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


def gaps_in(run: "Run", recalled: "Recalled", time_of: TimeOf) -> Iterator[str]:
    heading = run.heading
    if not run.whole:
        begun, kept = moment(time_of(heading.start_time)), moment(time_of(recalled.begin))
        yield (
            f"Of the run that began at {begun} UTC something is known from {kept} UTC on. What was decided "
            "before isn't known: the beginning of its journal is overwritten. Of what was decided after it, "
            "only swaps and drops that engines asked for are known: loads, evictions, writes to disk, and "
            "what the store moved by itself, are found by replaying a run from its beginning."
        )
    if run.torn:
        yield (
            f"Known until {moment(time_of(recalled.end))} UTC: {run.torn}. What was decided after that in "
            "this run isn't known: its service was killed, or is writing still."
        )
