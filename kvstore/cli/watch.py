"""`kvstore watch`: what happens in a running service, a line an event, until it is interrupted."""

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict

from kvstore.cli.options import DEFAULT_SOCKET, Socket, operator
from kvstore.cli.texts import check_text, counted
from kvstore.core.errors import ConfigInvalid
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["describe", "watch"]

EPOCH = re.compile(r"[0-9a-fA-F]{16}")
KEYS_SHOWN = 4
KEY_DIGITS = 12


def watch(
    socket: Socket = DEFAULT_SOCKET,
    engine: Annotated[str, typer.Option(help="Only what concerns this one: engines/UUID.")] = "",
    start: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="The first revision; 0: from now.")] = 0,
    epoch: Annotated[
        str,
        typer.Option(
            help="The epoch that --start was counted in, as `kvstore status` shows it: revisions begin anew "
            "with each start of the service. Another one is refused."
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as one JSON object.")] = False,
) -> None:
    """Print events as they happen: sequences, blocks by tier, pressure, engines that are gone.

    Where it begins is told on stderr: with --start and --epoch one may go on from there.
    """
    engine, store_epoch = check_text("--engine", engine), _parse_epoch(epoch)
    try:
        with operator(socket) as service:
            batches = service.watch_events(engine=engine, start_revision=start, store_epoch=store_epoch)
            # It is empty.
            first = next(batches)
            typer.echo(
                f"watching epoch {first.store_epoch:016x} from revision {first.revision + 1} on", err=True
            )
            for batch in batches:
                for event in batch.events:
                    print(_json(event) if as_json else f"{event.revision:>10}  {describe(event)}")
                # One who reads from a pipe waits for it.
                sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Whoever reads has enough. Python would try once more at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse_epoch(text: str) -> int:
    """0: not looked at."""
    if text and not EPOCH.fullmatch(text):
        remedy = "16 digits in hex, as `kvstore status` shows it"
        raise ConfigInvalid("no epoch", field="--epoch", value=text, remedy=remedy)
    return int(text or "0", 16)


def describe(event: pb.Event) -> str:
    """One line, for people."""
    match event.WhichOneof("kind"):
        case "sequence_moved":
            moved = event.sequence_moved
            state = pb.Sequence.State.Name(moved.state)
            valid = counted(moved.valid_tokens, "token valid")
            return f"{moved.engine} sequence {moved.sequence}: {state}, {valid}"
        case "blocks_stored":
            return f"stored in {_blocks(event.blocks_stored)}"
        case "blocks_removed":
            return f"removed from {_blocks(event.blocks_removed)}"
        case "pressure_changed":
            changed = event.pressure_changed
            pressure = pb.Pressure.Name(changed.pressure).removeprefix("PRESSURE_").lower()
            return f"pressure on {_tier(changed.tier)}: {pressure}"
        case "engine_expired":
            return f"{event.engine_expired.engine} is gone"
    return "an event that this version does not know"


def _blocks(blocks: pb.BlocksStored | pb.BlocksRemoved) -> str:
    keys = blocks.block_keys
    where = f"{_tier(blocks.tier)}, tenant {blocks.tenant!r}"
    return f"{where}: {counted(len(keys), 'block')} {_shown(keys)}"


def _shown(keys: Sequence[bytes]) -> str:
    shown = " ".join(key.hex()[:KEY_DIGITS] for key in keys[:KEYS_SHOWN])
    return shown + (" …" if len(keys) > KEYS_SHOWN else "")


def _tier(tier: pb.Tier.ValueType) -> str:
    return pb.Tier.Name(tier).removeprefix("TIER_").lower()


def _json(event: pb.Event) -> str:
    """Keys in hex, as everywhere for people, and not in base64."""
    shown = MessageToDict(event, preserving_proto_field_name=True)
    for kind in ("blocks_stored", "blocks_removed"):
        if kind in shown:
            blocks = getattr(event, kind)
            shown[kind]["block_keys"] = [key.hex() for key in blocks.block_keys]
            shown[kind]["fingerprint"] = blocks.fingerprint.hex()
    return json.dumps(shown)
