"""`kvstore status`: what a running service tells of itself, as tables or as JSON."""

import time
from typing import Annotated

import grpc
import typer
from google.protobuf.json_format import MessageToJson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvstore.client.address import default_address
from kvstore.client.errors import ClientError, Unanswered, from_rpc
from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1.kvstore_pb2_grpc import KVStoreStub

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
    json: Annotated[bool, typer.Option("--json", help="Print GetUsage as one JSON object.")] = False,
) -> None:
    """Show the tiers and engines of a running service."""
    usage = _usage(socket if socket.startswith("unix:") else f"unix:{socket}")
    if json:
        typer.echo(_json(usage))
        return
    console = Console()
    console.print(_tiers(usage))
    console.print(_engines(usage) if usage.engines else "No engine is attached.")


def _usage(address: str) -> pb.Usage:
    with grpc.insecure_channel(address) as channel:
        try:
            return KVStoreStub(channel).GetUsage(pb.GetUsageRequest(), timeout=DEADLINE_SECONDS)
        except grpc.RpcError as error:
            problem = from_rpc(error)
    if isinstance(problem, Unanswered):
        problem = ClientError(
            f"no service answers on {address} (start one: kvstore serve, or name its --socket)"
        )
    raise problem


def _json(usage: pb.Usage) -> str:
    return MessageToJson(usage, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _tiers(usage: pb.Usage) -> Table:
    """A column a tier: so it fits the narrowest terminal."""
    table = Table("", title=f"Tiers (epoch {usage.store_epoch:016x})")
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
