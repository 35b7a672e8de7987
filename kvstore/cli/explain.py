"""`kvstore explain`: what the service has decided, and on what that rested."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict

from kvstore.cli.explain_sources import Answer, ask, recall
from kvstore.cli.explain_words import describe
from kvstore.cli.options import DEFAULT_SOCKET, Socket
from kvstore.cli.texts import check_text, counted, shown
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["explain"]

LIMIT = 20
NAMES_TOLD = 5
# What it means that there is no decision of a kind.
NOTHING = {
    "swap": "no sequence was swapped out or dropped",
    "restore": "none came in with content from below the GPU",
    "evict": "no block had to leave a tier",
    "admit": "none was to go to disk",
}


def explain(
    socket: Socket = DEFAULT_SOCKET,
    session: Annotated[str, typer.Option(help="What concerns this chat session.")] = "",
    sequence: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="What concerns this sequence.")] = 0,
    engine: Annotated[
        str, typer.Option(help="What concerns sequences of this one, as `kvstore status` shows it.")
    ] = "",
    kind: Annotated[str, typer.Option(help="Only swap, restore, evict or admit.")] = "",
    limit: Annotated[int, typer.Option(min=0, help="The latest so many; 0: all.")] = LIMIT,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="Folder of `kvstore serve --journal`, or of what `kvstore demo --keep` kept of it: what was "
            "decided then. No service is asked."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each decision as one JSON object.")] = False,
) -> None:
    """Print what was decided, the latest last: swaps, drops, loads, evictions, writes to disk.

    Both sides of each choice are given in seconds as they were priced, with all that they rest on. Exit
    status 1: nobody knows what is named.
    """
    request = pb.ListDecisionsRequest(
        session=check_text("--session", session),
        sequence=sequence,
        engine=check_text("--engine", engine),
        kind=check_text("--kind", kind),
    )
    source = partial(ask, socket) if journal is None else partial(recall, journal)
    answer = source(request, limit)
    try:
        for decision in reversed(answer.decisions):
            print(_json(decision) if as_json else describe(decision))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has enough. Python would try once more at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # On stderr: what is read by a program stays as it is.
    for line in _notes(answer, request, source):
        print(line, file=sys.stderr)
    if not answer.known and not answer.decisions and (session or sequence or engine):
        raise typer.Exit(1)


Source = Callable[[pb.ListDecisionsRequest, int], Answer]


def _notes(answer: Answer, request: pb.ListDecisionsRequest, source: Source) -> Iterator[str]:
    """What is left out, and why there is nothing."""
    shown = len(answer.decisions)
    if shown < answer.total:
        left = counted(answer.total - shown, "decision")
        yield f"{left} before these left out: --limit {answer.total} shows them, --limit 0 all there are."
    if shown:
        return
    asked = _named(request)
    if not asked:
        what = f"Nothing of the kind {request.kind} was" if request.kind else "Nothing was"
        why = NOTHING.get(request.kind, "") if request.kind else ", ".join(NOTHING.values())
        yield f"{what} decided since the start that is still remembered" + (f": {why}." if why else ".")
    elif answer.known:
        kind = f" of the kind {request.kind}" if request.kind else ""
        yield (
            f"{asked}: known, and no decision{kind} about it is remembered. There was none, or so long ago "
            "that others have taken its place (the last 4,096 of each kind are remembered, since the start)."
        )
    else:
        yield f"{asked}: not known, neither there nor in any decision since the start that is remembered."
        yield from _advice(request, source)


def _named(request: pb.ListDecisionsRequest) -> str:
    parts = [
        f"session {shown(request.session)}" if request.session else "",
        f"sequence {request.sequence}" if request.sequence else "",
        f"engine {request.engine}" if request.engine else "",
    ]
    return " and ".join(filter(None, parts))


def _advice(request: pb.ListDecisionsRequest, source: Source) -> Iterator[str]:
    """What to try."""
    if request.session:
        names = _sessions(source(pb.ListDecisionsRequest(), 0))
        close = get_close_matches(request.session, names, NAMES_TOLD) or names[:NAMES_TOLD]
        if close:
            yield (
                f"Sessions in decisions: {', '.join(map(shown, close))}"
                + (", …" if len(names) > len(close) else "")
                + "."
            )
    yield (
        "Try it without --session, --sequence and --engine for all; `kvstore status` shows the engines of a "
        "service, and what was before its start is in its journal, if it has one (--journal FOLDER)."
    )


def _sessions(answer: Answer) -> list[str]:
    """Named in them, the latest first."""
    found: dict[str, None] = {}
    for decision in answer.decisions:
        whom = [each.session for each in decision.room_for], [each.session for each in decision.blocks_of]
        found |= dict.fromkeys(filter(None, (decision.session, *whom[0], *whom[1])))
    return list(found)


def _json(decision: pb.Decision) -> str:
    told = MessageToDict(
        decision, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    # A map has no order: the same decision is to be the same line.
    told["inputs"] = dict(sorted(told["inputs"].items()))
    return json.dumps(told)
