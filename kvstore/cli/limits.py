"""`kvstore limits`: how fast the links of a running service may be and how full its tiers; shown, and set."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.table import Table

from kvstore.cli.options import DEFAULT_SOCKET, Socket, operator
from kvstore.cli.texts import check_text, rate_words
from kvstore.core.errors import ConfigInvalid
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["limit_words", "limits"]


def limits(
    socket: Socket = DEFAULT_SOCKET,
    to_set: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="LINK=RATE; repeatable. Links: gpu_to_cpu, cpu_to_gpu, cpu_to_disk, disk_to_cpu. "
            "RATE: 2GB/s, a share of the measured bandwidth like 50%, or unlimited.",
        ),
    ] = None,
    high_watermark: Annotated[
        list[str] | None, typer.Option(help="TIER=SHARE, like gpu=90%; repeatable. Tiers: gpu, cpu.")
    ] = None,
    low_watermark: Annotated[list[str] | None, typer.Option(help="As for --high-watermark.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the limits as one JSON object.")] = False,
) -> None:
    """Show, and set, rate limits and watermarks of a running service.

    What isn't named stays as it is.
    """
    asked = _asked(to_set or (), high_watermark or (), low_watermark or ())
    with operator(socket) as service:
        now = service.update_limits(asked)
    if as_json:
        typer.echo(json.dumps(MessageToDict(now, preserving_proto_field_name=True), indent=2))
        return
    console = Console()
    console.print(_rates(now) if now.rates else "No links: the service has no CPU tier.")
    console.print(_watermarks(now))


def _asked(rates: Sequence[str], high: Sequence[str], low: Sequence[str]) -> pb.Limits:
    """Which links and tiers there are is the service's to say."""
    if not (rates or high or low):
        return pb.Limits()
    # Imported here: to show the limits needs nothing of the server, nor numpy.
    from kvstore.server.limits import parse_rate
    from kvstore.server.sizes import parse_share

    asked = pb.Limits()
    for text in rates:
        name, rate_text = _pair(text, "--set", "gpu_to_cpu=2GB/s")
        rate = parse_rate(rate_text, flag="--set", value=text)
        if rate.share:
            asked.rates[name].share = rate.share
        elif rate.bytes_per_second:
            asked.rates[name].bytes_per_second = rate.bytes_per_second
        else:
            asked.rates[name].unlimited = True
    for flag, texts, marks in (
        ("--high-watermark", high, asked.high_watermark),
        ("--low-watermark", low, asked.low_watermark),
    ):
        for text in texts:
            name, share = _pair(text, flag, "gpu=90%")
            marks[name] = parse_share(share, flag=flag, value=text)
    return asked


def _pair(text: str, flag: str, example: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not (found and name.strip()):
        raise ConfigInvalid("not NAME=VALUE", field=flag, value=text, remedy=f"like {example}")
    return check_text(flag, name.strip()), value.strip()


def _rates(limits: pb.Limits) -> Table:
    table = Table("link", "limit", "bytes a second")
    for link, rate in sorted(limits.rates.items()):
        effective = f"{rate.effective_bytes_per_second:,}" if rate.effective_bytes_per_second else ""
        table.add_row(link, limit_words(rate), effective)
    return table


def limit_words(rate: pb.RateLimit) -> str:
    if rate.unlimited:
        return "unlimited"
    if not rate.share:
        return rate_words(rate.bytes_per_second)
    if not rate.effective_bytes_per_second:
        return f"{rate.share * 100:.4g} % of a bandwidth not measured yet"
    # Of what was measured when the share was last turned into a rate.
    measured = rate_words(rate.effective_bytes_per_second / rate.share)
    return f"{rate.share * 100:.4g} % of the measured {measured}"


def _watermarks(limits: pb.Limits) -> Table:
    table = Table("tier", "high watermark", "low watermark")
    for tier, high in sorted(limits.high_watermark.items(), reverse=True):
        table.add_row(tier, f"{high:.0%}", f"{limits.low_watermark[tier]:.0%}")
    return table
