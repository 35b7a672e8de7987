"""`kvstore explain`: what the service has decided, and on what that rested."""

import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict

from kvstore.cli.explain_words import describe
from kvstore.cli.texts import check_text
from kvstore.client.address import default_address
from kvstore.client.client import Client
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["explain"]


def explain(
    socket: Annotated[
        str, typer.Option(default_factory=default_address, help="The service's socket: a path, or unix:PATH.")
    ],
    session: Annotated[str, typer.Option(help="What concerns this chat session.")] = "",
    sequence: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="What concerns this sequence.")] = 0,
    engine: Annotated[str, typer.Option(help="What concerns sequences of this one: engines/UUID.")] = "",
    kind: Annotated[str, typer.Option(help="Only swap, restore, evict or admit.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="The latest so many.")] = 20,
    journal: Annotated[
        Path | None,
        typer.Option(help="Folder of `kvstore serve --journal`: what was decided then. No service is asked."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each decision as one JSON object.")] = False,
) -> None:
    """Print what was decided, the latest last: swaps, drops, loads, evictions, writes to disk.

    Both sides of each choice are given in seconds as they were priced, with all that they rest on.
    """
    request = pb.ListDecisionsRequest(
        session=check_text("--session", session),
        sequence=sequence,
        engine=check_text("--engine", engine),
        kind=check_text("--kind", kind),
    )
    latest = list(islice(_ask(socket, request) if journal is None else _recall(journal, request), limit))
    try:
        for decision in reversed(latest):
            print(_json(decision) if as_json else describe(decision))
        if not latest and not as_json:
            print("Nothing was decided of this that is still remembered.")
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has enough. Python would try once more at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _ask(socket: str, request: pb.ListDecisionsRequest) -> Iterator[pb.Decision]:
    with Client(socket) as client:
        yield from client.operator.list_decisions(
            session=request.session, engine=request.engine, sequence=request.sequence, kind=request.kind
        )


def _recall(path: Path, request: pb.ListDecisionsRequest) -> Iterator[pb.Decision]:
    """Of the last run that is whole: its events decide the same once more."""
    # Imported here: to ask a service no core has to be loaded.
    from kvstore.core.errors import JournalInvalid
    from kvstore.observe.reading import find_runs
    from kvstore.observe.replay import remake
    from kvstore.server.decisions import decode_query
    from kvstore.server.encode_results import encode_decision

    query, _ = decode_query(request)
    runs = [run for run in find_runs(path) if run.whole]
    if not runs:
        raise JournalInvalid(
            "no run can be replayed from its beginning",
            field="--journal",
            value=path,
            remedy="name a folder of `kvstore serve --journal` whose first segment is still there",
        )
    heading = runs[-1].heading
    for _, decision in remake(runs[-1]).decisions(query):
        message = encode_decision(decision)
        message.time.FromNanoseconds(round(1e9 * (heading.start_wall + decision.time - heading.start_time)))
        yield message


def _json(decision: pb.Decision) -> str:
    return json.dumps(
        MessageToDict(decision, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    )
