"""`kvstore status`: what a running service tells of itself, as a page or as JSON, and what that advises."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict
from rich.console import Console

from kvstore.cli.advice import Advice, advise
from kvstore.cli.page import show_page
from kvstore.client.address import default_address
from kvstore.client.client import Client
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["status"]

DEADLINE_SECONDS = 5.0


def status(
    socket: Annotated[
        str, typer.Option(default_factory=default_address, help="The service's socket: a path, or unix:PATH.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print GetUsage, and the advice, as one JSON object.")
    ] = False,
) -> None:
    """Show tiers, links, hits and engines of a running service, and what to do about what is wrong."""
    usage = _usage(socket)
    advice = advise(usage)
    if as_json:
        typer.echo(_json(usage, advice))
    else:
        show_page(usage, advice, Console())


def _usage(address: str) -> pb.Usage:
    with Client(address, deadline_seconds=DEADLINE_SECONDS) as client:
        return client.operator.usage()


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
