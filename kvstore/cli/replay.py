"""`kvstore replay`: a journal run through a fresh store, or the story of one block, sequence or session."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from kvstore.cli.texts import counted, shown
from kvstore.core.errors import JournalInvalid
from kvstore.observe.comparing import differences, outcome_words
from kvstore.observe.reading import Run, find_runs
from kvstore.observe.replay import Difference
from kvstore.observe.replay import replay as replay_run
from kvstore.observe.selecting import parse_selector
from kvstore.observe.story import heading_words, tell_story
from kvstore.observe.words import event_words

__all__ = ["replay"]

SAME, DIFFERENT, NOT_REPLAYED = 0, 1, 2
TOLD, UNKNOWN = 0, 1


def replay(
    journal: Annotated[Path, typer.Argument(help="Folder of `kvstore serve --journal`, or a segment in it.")],
    story: Annotated[
        str | None,
        typer.Option(
            help="Tell what happened to one: block=KEY, block=TIER:FRAME, sequence=ENGINE:ID, session=ID."
        ),
    ] = None,
    epoch: Annotated[str, typer.Option(help="Only runs whose epoch begins so.")] = "",
    check: Annotated[
        bool, typer.Option("--check", help="Check every invariant after every event; slow.")
    ] = False,
) -> None:
    """Run what a service recorded once more, and compare.

    Exit status 0: every event had the same effects, or the story was told. 1: one had others, or no run
    knows of what --story names. 2: nothing to compare, or a run
    whose beginning has been overwritten: it can't be replayed, but stories can be told of it.
    """
    selector = parse_selector(story) if story is not None else None
    runs = [run for run in find_runs(journal) if f"{run.heading.store_epoch:016x}".startswith(epoch)]
    if not runs:
        of_epoch = f" whose epoch begins with {epoch!r}" if epoch else ""
        remedy = "name the folder of `kvstore serve --journal`, or a segment in it"
        raise JournalInvalid(
            f"no run{of_epoch} is recorded there", field="journal", value=journal, remedy=remedy
        )
    statuses: set[int] = set()
    # One run that knows of it is enough.
    stories: set[int] = set()
    for run in runs:
        typer.echo(heading_words(run))
        if selector is None:
            statuses.add(_replay(run, check))
        else:
            lines, is_known = tell_story(run, selector)
            stories.add(TOLD if is_known else UNKNOWN)
            for line in lines if is_known else [f"nothing is known of {story}", *lines]:
                typer.echo(f"  {shown(line)}")
        if run.torn:
            typer.echo(f"  {run.torn}: left out")
    if stories:
        raise typer.Exit(min(stories))
    raise typer.Exit(DIFFERENT if DIFFERENT in statuses else max(statuses, default=SAME))


def _replay(run: Run, check_each: bool) -> int:
    if not run.whole:
        typer.echo("  can't be replayed without its beginning; --story works")
        return NOT_REPLAYED
    done = replay_run(run, check_each=check_each)
    if done.difference is not None:
        for line in _difference_lines(run, done.difference):
            typer.echo(f"  {line}")
        return DIFFERENT
    typer.echo(f"  {counted(done.entries, 'event')}, the same effects as then")
    if done.failure is not None:
        typer.echo(f"  the store stopped, now as then, {done.failure.kind}: {done.failure.text}")
    return SAME


def _difference_lines(run: Run, difference: Difference) -> Iterator[str]:
    entry, found = difference.entry, difference.found
    time = entry.event.time - run.heading.start_time
    yield f"event {entry.number} at {time:.3f} s came out otherwise: {event_words(entry.event)}"
    yield f"then: {outcome_words(entry.outcome)}"
    yield f"now:  {outcome_words(found)}"
    yield from differences(entry.outcome, found)
