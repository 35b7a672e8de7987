"""The first call of an engine: Attach until it is answered, and the way back where that was in vain."""

import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvstore.client.calls import Service
from kvstore.client.errors import ClientError, Refused, Unanswered
from kvstore.client.operations import duration
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Layout", "ask_attach", "check_ranks", "give_up"]

# The first Attach makes the pools, and the kernel clears every page of them.
ATTACH_SECONDS = 60.0
# An old engine may still hold the memory that the new pools need.
POOL_PATIENCE_SECONDS = 10.0
PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How this engine reads a frame. Caches are shared between equal fingerprints only."""

    block_tokens: int
    block_bytes: int  # On one rank.
    ranks: int = 1
    fingerprint: bytes  # 32 bytes, over all that makes KV differ besides its tokens.
    description: Mapping[str, str] = field(default_factory=dict)  # For people.


def check_ranks(ranks: Sequence[int], count: int) -> None:
    """Of a layout of `count` ranks those whose pools are to be mapped. Each pool is handed over once."""
    for place, rank in enumerate(ranks):
        if not 0 <= rank < count:
            raise ClientError(
                f"map_ranks {list(ranks)}: there is no rank {rank}; name ranks from 0 to {count - 1}"
            )
        if rank in ranks[:place]:
            raise ClientError(f"map_ranks {list(ranks)}: rank {rank} is named twice; name each rank once")


def ask_attach(service: Service, layout: Layout, *, build: str, lease_seconds: float) -> pb.AttachResponse:
    """One request id for all tries, so that there is one engine whatever gets lost."""
    request = pb.AttachRequest(
        request_id=str(uuid.uuid4()),
        layout=_to_message(layout),
        lease=duration(lease_seconds),
        build=build,
    )
    begin = time.monotonic()
    while True:
        try:
            return service.call(service.stub.Attach, request, timeout=ATTACH_SECONDS)
        except Unanswered:
            if time.monotonic() - begin >= service.deadline_seconds:
                raise
        except Refused as refused:
            if refused.reason != "POOL_UNAVAILABLE" or time.monotonic() - begin >= POOL_PATIENCE_SECONDS:
                raise
        time.sleep(PAUSE_SECONDS)


def give_up(service: Service, engine: pb.Engine) -> None:
    """An engine that could not map is of no use, and ends by its lease if this is not heard."""
    with contextlib.suppress(ClientError):
        request, timeout = pb.DetachRequest(name=engine.name), service.deadline_seconds
        service.call(service.stub.Detach, request, timeout=timeout)


def _to_message(layout: Layout) -> pb.BlockLayout:
    return pb.BlockLayout(
        block_tokens=layout.block_tokens,
        block_bytes=layout.block_bytes,
        ranks=layout.ranks,
        fingerprint=layout.fingerprint,
        description=dict(layout.description),
    )
