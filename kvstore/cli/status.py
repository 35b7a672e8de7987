"""`kvstore status`: what a running service tells of itself, as tables or as JSON."""

import json
import time
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvstore.client.address import default_address
from kvstore.client.client import Client
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["status"]

DEADLINE_SECONDS = 5.0
COUNTS = (
    "frames_total",
    "frames_free",
    "frames_cached",
    "frames_pinned",
    "frames_quarantined",
    "blocks_moved_in",
    "blocks_failed",
    "blocks_evicted",
)


def status(
    socket: Annotated[
        str, typer.Option(default_factory=default_address, help="The service's socket: a path, or unix:PATH.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print GetUsage as one JSON object.")] = False,
) -> None:
    """Show the tiers and engines of a running service."""
    usage = _usage(socket)
    if as_json:
        typer.echo(_json(usage))
        return
    console = Console()
    # Not the table's title: with one tier that is too narrow for it.
    console.print(f"Tiers (epoch {_hex(usage.store_epoch)})", style="italic", highlight=False)
    console.print(_tiers(usage))
    if usage.engines:
        console.print(_engines(usage))
    elif not any(tier.frames_total for tier in usage.tiers):
        console.print("No engine has attached yet: the pools are made with the first one.")
    else:
        console.print("No engine is attached.")


def _usage(address: str) -> pb.Usage:
    with Client(address, deadline_seconds=DEADLINE_SECONDS) as client:
        return client.usage()


def _json(usage: pb.Usage) -> str:
    shown = MessageToDict(usage, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    # As in the table, so that they can be compared.
    shown["store_epoch"] = _hex(usage.store_epoch)
    for engine, each in zip(shown["engines"], usage.engines, strict=True):
        engine["engine"]["store_epoch"] = _hex(each.engine.store_epoch)
    return json.dumps(shown, indent=2)


def _hex(epoch: int) -> str:
    return f"{epoch:016x}"


def _tiers(usage: pb.Usage) -> Table:
    """A column a tier: so it fits the narrowest terminal."""
    table = Table("")
    for tier in usage.tiers:
        table.add_column(pb.Tier.Name(tier.tier).removeprefix("TIER_"), justify="right")
    for count in COUNTS:
        table.add_row(count.replace("_", " "), *(f"{getattr(tier, count):,}" for tier in usage.tiers))
    pressures = (pb.Pressure.Name(tier.pressure).removeprefix("PRESSURE_").lower() for tier in usage.tiers)
    table.add_row("pressure", *pressures)
    table.add_row("writes", *("failing" if tier.degraded else "ok" for tier in usage.tiers))
    return table


def _engines(usage: pb.Usage) -> Table:
    table = Table(title="Engines")
    for column in ("engine", "build", "state", "lease", "sequences", "held back", "pids"):
        table.add_column(column)
    for engine in usage.engines:
        table.add_row(
            # Enough to tell them apart; --json has the whole name.
            engine.engine.name.removeprefix("engines/")[:8],
            # An engine's own words: shown, never taken for markup.
            Text(engine.build),
            pb.Engine.State.Name(engine.engine.state).lower(),
            f"{engine.engine.expire_time.ToNanoseconds() / 1e9 - time.time():.0f} s",
            str(engine.sequences),
            str(engine.frames_quarantined),
            ", ".join(map(str, engine.peer_pids)),
        )
    return table
