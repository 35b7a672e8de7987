"""`kvstore explain`: what the service has decided, and on what that rested."""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict

from kvstore.cli.explain_notes import names_anybody, notes
from kvstore.cli.explain_sources import ask, recall
from kvstore.cli.explain_words import describe
from kvstore.cli.options import DEFAULT_SOCKET, Socket
from kvstore.cli.texts import check_text
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["explain"]

LIMIT = 20


def explain(
    socket: Socket = DEFAULT_SOCKET,
    session: Annotated[str, typer.Option(help="What concerns this chat session.")] = "",
    sequence: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="What concerns this sequence.")] = 0,
    engine: Annotated[
        str, typer.Option(help="What concerns sequences of this one, as `kvstore status` shows it.")
    ] = "",
    tenant: Annotated[
        str, typer.Option(help="What concerns this one; with --session, whose it is (else any's).")
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
        tenant=check_text("--tenant", tenant),
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
    for line in notes(answer, request, source):
        print(line, file=sys.stderr)
    if not answer.known and not answer.decisions and names_anybody(request):
        raise typer.Exit(1)


def _json(decision: pb.Decision) -> str:
    told = MessageToDict(
        decision, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    # A map has no order: the same decision is to be the same line.
    told["inputs"] = dict(sorted(told["inputs"].items()))
    return json.dumps(told)
