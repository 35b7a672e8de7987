"""The contract's requests as the core's events, checked for what the core can't see.

Here: forms of names and ids, lengths of keys, lists and texts, enums, oneofs. Whether an id is
known, a count fits or a step is next is the core's to say. Each refusal names the path of the
field. Steps and their operations are in `decode_step.py`.
"""

from dataclasses import dataclass

from kvstore.core.calls import Detach, GetSequence, KeepAlive, Lookup
from kvstore.core.errors import FieldInvalid
from kvstore.core.types import EngineId, Revision, SequenceId, StepNumber
from kvstore.server.fields import engine_id, refuse, seconds, short_text, uuid4, within
from kvstore.server.layout import Layout
from kvstore.v1 import kvstore_pb2 as pb

__all__ = [
    "AttachCall",
    "DrainCall",
    "WatchCall",
    "decode_attach",
    "decode_detach",
    "decode_drain",
    "decode_get_sequence",
    "decode_keep_alive",
    "decode_lookup",
    "decode_watch",
]

BUILD_BYTES_MAX = 128
# The store ticks ten times a second; a lease of less than two ticks could not be kept.
LEASE_SECONDS_MIN = 0.2
DRAIN_SECONDS = 60.0
DRAIN_SECONDS_MAX = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachCall:
    """An Attach before the shell has given it an engine, a namespace and a writer.

    `lease_seconds` of 0: the store's default.
    """

    request_id: str
    layout: Layout
    lease_seconds: float
    build: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchCall:
    """`engine` empty: all; `start_revision` 0: from now; `store_epoch` 0: whichever."""

    engine: EngineId
    start_revision: int
    store_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainCall:
    seconds: float
    cancel: bool
    stop: bool


def decode_attach(request: pb.AttachRequest) -> AttachCall:
    if not request.HasField("layout"):
        refuse("layout", "unset", "missing", "name the sizes and the fingerprint of the blocks")
    layout = request.layout
    try:
        checked = Layout(
            block_tokens=layout.block_tokens,
            block_bytes=layout.block_bytes,
            ranks=layout.ranks,
            fingerprint=layout.fingerprint,
            description=dict(layout.description),
        )
    except FieldInvalid as error:
        raise within("layout", error) from None
    if len(request.build.encode()) > BUILD_BYTES_MAX:
        refuse("build", request.build, "too long", f"at most {BUILD_BYTES_MAX} bytes")
    lease = seconds("lease", request.lease, least=LEASE_SECONDS_MIN) if request.HasField("lease") else 0.0
    return AttachCall(
        request_id=uuid4("request_id", request.request_id),
        layout=checked,
        lease_seconds=lease,
        build=request.build,
    )


def decode_keep_alive(request: pb.KeepAliveRequest, time: float) -> tuple[KeepAlive, float]:
    """The event, and for how long to wait for news."""
    event = KeepAlive(
        time=time,
        engine=engine_id("name", request.name),
        completed_step=StepNumber(request.completed_step),
        seen_revision=Revision(request.seen_revision),
    )
    return event, seconds("wait", request.wait) if request.HasField("wait") else 0.0


def decode_detach(request: pb.DetachRequest, time: float) -> Detach:
    return Detach(time=time, engine=engine_id("name", request.name))


def decode_lookup(request: pb.LookupRequest, time: float) -> Lookup:
    return Lookup(
        time=time,
        engine=engine_id("engine", request.engine),
        # Many, and nothing is done to them: the core looks closely where one is not found.
        block_keys=tuple(request.block_keys[:]),  # type: ignore[arg-type]
        tenant=short_text("tenant", request.tenant),
    )


def decode_get_sequence(request: pb.GetSequenceRequest, time: float) -> GetSequence:
    return GetSequence(
        time=time, engine=engine_id("engine", request.engine), sequence=SequenceId(request.sequence)
    )


def decode_watch(request: pb.WatchEventsRequest) -> WatchCall:
    return WatchCall(
        engine=engine_id("engine", request.engine) if request.engine else EngineId(""),
        start_revision=request.start_revision,
        store_epoch=request.store_epoch,
    )


def decode_drain(request: pb.DrainRequest) -> DrainCall:
    timeout = seconds("timeout", request.timeout) if request.HasField("timeout") else DRAIN_SECONDS
    if timeout > DRAIN_SECONDS_MAX:
        refuse("timeout", f"{timeout:g}s", "too long", f"at most {DRAIN_SECONDS_MAX:g} seconds")
    if request.cancel and request.stop:
        refuse("cancel", "true", "a drain that is cancelled stops nothing", "set cancel or stop")
    return DrainCall(seconds=timeout, cancel=request.cancel, stop=request.stop)
