"""What a field of a call may be, whatever the engine holds: texts, keys, tenants, counts.

Raises the refusal, with the field's name, or returns.
"""

import math
from collections.abc import Sequence as Many

from kvstore.core.calls import Prefetch, Retain, SetCosts, Step
from kvstore.core.config import StoreConfig
from kvstore.core.errors import FieldInvalid, TenantRefused, check
from kvstore.core.types import CPU, GPU, BlockKey, StepNumber, Tier

__all__ = [
    "CHILDREN_MAX",
    "FREED_MAX",
    "KEY_BYTES",
    "SESSION_BYTES_MAX",
    "at_most",
    "check_chain",
    "check_completed",
    "check_costs",
    "check_keys",
    "check_session",
    "check_target",
    "check_tenant",
    "check_time_limit",
    "check_timings",
]

CHILDREN_MAX = 64
FREED_MAX = 4096
SESSION_BYTES_MAX = 256
KEY_BYTES = 32
# What stands on disk for the key above the first block of a chain.
NO_PARENT = BlockKey(bytes(KEY_BYTES))
# A week: what is to be kept for longer is asked for again.
TTL_SECONDS_MAX = 7 * 86_400.0
TIMINGS_MAX = 64
# A microsecond is what a Duration rounds to on its way here.
LEAST_SECONDS, STEP_SECONDS_MAX = 1e-6, 3_600.0


def check_completed(completed_step: StepNumber, oldest: StepNumber, newest: StepNumber) -> None:
    if not oldest <= completed_step <= newest:
        raise FieldInvalid(
            f"not between {oldest} and {newest}",
            field="completed_step",
            value=completed_step,
            remedy="name the last step whose GPU work has finished",
        )


def check_tenant(config: StoreConfig, tenant: str) -> None:
    if tenant and tenant not in config.tenants:
        raise TenantRefused(
            "not a tenant of this socket",
            field="tenant",
            value=tenant,
            remedy="name one of " + ", ".join(sorted(config.tenants)) + ", or none for the default",
        )


def check_chain(config: StoreConfig, event: Prefetch | Retain) -> None:
    """A prompt by its keys, or a session by its name."""
    check_tenant(config, event.tenant)
    check_session(event.session)
    if event.session and event.block_keys:
        raise FieldInvalid(
            "block_keys are named as well",
            field="session",
            value=event.session,
            remedy="name a prompt by its keys, or a session",
        )
    if not event.session and not event.block_keys:
        raise FieldInvalid(
            "nothing is named", field="block_keys", value="", remedy="name keys of a prompt, or a session"
        )
    at_most("block_keys", len(event.block_keys), config.tokens_max // config.block_tokens)
    check_keys(event.block_keys)


def check_target(target: Tier) -> None:
    if target not in (GPU, CPU):
        raise FieldInvalid(
            "not a tier to bring blocks up to", field="target", value=target.name, remedy="GPU or CPU"
        )


def check_time_limit(seconds: float) -> None:
    if not 0 < seconds <= TTL_SECONDS_MAX:
        remedy = f"above 0 and at most {TTL_SECONDS_MAX:g} seconds"
        raise FieldInvalid("out of bounds", field="ttl", value=f"{seconds:g}s", remedy=remedy)


def check_timings(config: StoreConfig, event: Step) -> None:
    """What no step can have taken, or done, would spoil what is learnt from all others."""
    at_most("timings", len(event.timings), TIMINGS_MAX)
    for index, timing in enumerate(event.timings):
        prefilled, context = timing.prefill_tokens, timing.prefill_context
        decoded, read = timing.decode_sequences, timing.decode_context
        most = config.tokens_max
        for name, value, low, high in (
            ("step", timing.step, 1, event.completed_step),
            ("elapsed", timing.elapsed_seconds, LEAST_SECONDS, STEP_SECONDS_MAX),
            ("prefill_tokens", prefilled, 0, most),
            ("prefill_context", context, prefilled // 2, prefilled * most),
            ("decode_sequences", decoded, 0, config.sequences_max),
            ("decode_context", read, decoded, decoded * most),
        ):
            # NaN is in no order with anything, so it fails here too.
            if not low <= value <= high:
                raise FieldInvalid(
                    "not what a step can be",
                    field=f"timings[{index}].{name}",
                    value=value,
                    remedy=f"{low:g} to {high:g}, or leave the step's timing out",
                )


def check_costs(event: SetCosts) -> None:
    """From the service itself: anything else is a bug."""
    check(event.block_bytes > 0, f"blocks of {event.block_bytes} bytes")
    for link in event.links:
        sound = 0 < link.bytes_per_second < math.inf and 0 <= link.fixed_seconds < math.inf
        check(sound, f"a link that costs {link.fixed_seconds} s and {link.bytes_per_second} bytes a second")


def check_keys(keys: Many[BlockKey]) -> None:
    if [*map(len, keys)].count(KEY_BYTES) == len(keys) and NO_PARENT not in keys:
        return
    index, key = next((i, key) for i, key in enumerate(keys) if len(key) != KEY_BYTES or key == NO_PARENT)
    raise FieldInvalid(
        "all zero" if key == NO_PARENT else f"{len(key)} bytes long",
        field=f"block_keys[{index}]",
        value=key.hex()[:64],
        remedy=f"a block key is a digest of {KEY_BYTES} bytes; nothing but zeros stands for none",
    )


def check_session(session: str) -> None:
    at_most("session", len(session.encode()), SESSION_BYTES_MAX, "bytes")


def at_most(field: str, value: int, most: int, unit: str = "") -> None:
    if value > most:
        raise FieldInvalid(
            "too many" if unit else "too large",
            field=field,
            value=value,
            remedy=f"at most {most} {unit}".rstrip(),
        )
