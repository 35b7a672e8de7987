"""Calls about cached content as the core's events: Lookup's next of kin, checked as in `decode.py`."""

import re
from dataclasses import dataclass

from kvstore.core.calls import Prefetch, Retain
from kvstore.core.types import EngineId, Tier
from kvstore.server.fields import block_keys, engine_id, refuse, seconds, short_text
from kvstore.server.layout import FINGERPRINT_BYTES
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["ForgetCall", "decode_forget", "decode_prefetch", "decode_retain"]

TARGETS = {pb.TIER_UNSPECIFIED: Tier.CPU, pb.TIER_CPU: Tier.CPU, pb.TIER_GPU: Tier.GPU}
FINGERPRINT = re.compile(f"[0-9a-f]{{{2 * FINGERPRINT_BYTES}}}", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetCall:
    """A Forget before the shell has looked its names up. Empty: not named."""

    session: str
    tenant: str
    fingerprint: bytes
    engine: EngineId
    whole_chain: bool
    wait_seconds: float


def decode_prefetch(request: pb.PrefetchRequest, time: float) -> Prefetch:
    if request.target not in TARGETS:
        # A number may come that no tier has.
        known = request.target in pb.Tier.values()
        shown = pb.Tier.Name(request.target) if known else request.target
        refuse("target", shown, "not a tier to bring blocks up to", "TIER_CPU or TIER_GPU")
    return Prefetch(
        time=time,
        engine=engine_id("engine", request.engine),
        block_keys=block_keys(request.block_keys),
        session=short_text("session", request.session),
        target=TARGETS[request.target],
        tenant=short_text("tenant", request.tenant),
    )


def decode_retain(request: pb.RetainRequest, time: float) -> Retain:
    return Retain(
        time=time,
        engine=engine_id("engine", request.engine),
        ttl_seconds=seconds("ttl", request.ttl),
        block_keys=block_keys(request.block_keys),
        session=short_text("session", request.session),
        priority=request.priority,
        tenant=short_text("tenant", request.tenant),
    )


def decode_forget(request: pb.ForgetRequest) -> ForgetCall:
    fingerprint = request.namespace
    if fingerprint and FINGERPRINT.fullmatch(fingerprint) is None:
        refuse("namespace", fingerprint, "not a fingerprint", f"{2 * FINGERPRINT_BYTES} hexadecimal digits")
    return ForgetCall(
        session=short_text("session", request.session),
        tenant=short_text("tenant", request.tenant),
        fingerprint=bytes.fromhex(fingerprint),
        engine=engine_id("engine", request.engine) if request.engine else EngineId(""),
        whole_chain=request.whole_chain,
        wait_seconds=seconds("wait", request.wait) if request.HasField("wait") else 0.0,
    )
