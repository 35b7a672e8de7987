"""`kvstore status`: what a running service tells of itself, as a page or as JSON, and what that advises."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict
from rich.console import Console

from kvstore.cli.advice import Advice, advise
from kvstore.cli.options import DEFAULT_SOCKET, Socket, operator
from kvstore.cli.page import show_page
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["status"]


def status(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print GetUsage, and the advice, as one JSON object.")
    ] = False,
) -> None:
    """Show tiers, links, hits and engines of a running service, and what to do about what is wrong."""
    with operator(socket) as service:
        usage = service.usage()
    advice = advise(usage)
    if as_json:
        typer.echo(_json(usage, advice))
    else:
        show_page(usage, advice, Console())


def _json(usage: pb.Usage, advice: Sequence[Advice]) -> str:
    shown = MessageToDict(usage, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    # As on the page, so that they can be compared.
    shown["store_epoch"] = _hex(usage.store_epoch)
    for engine, each in zip(shown["engines"], usage.engines, strict=True):
        engine["engine"]["store_epoch"] = _hex(each.engine.store_epoch)
    shown["advice"] = [{"about": each.about, "text": each.text} for each in advice]
    return json.dumps(shown, indent=2)


def _hex(epoch: int) -> str:
    return f"{epoch:016x}"
