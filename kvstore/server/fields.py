"""Fields of the contract that come again and again: names, keys, ids, durations, each with its refusal."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn, cast
from uuid import UUID

from google.protobuf.duration_pb2 import Duration

from kvstore.core.bounds import KEY_BYTES
from kvstore.core.errors import FieldInvalid
from kvstore.core.types import BlockKey, EngineId, SequenceId

__all__ = [
    "block_keys",
    "engine_id",
    "engine_name",
    "refuse",
    "seconds",
    "sequence_ids",
    "short_text",
    "uuid4",
    "within",
]

TEXT_BYTES_MAX = 256

ENGINE_NAME = re.compile(r"engines/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


def engine_name(engine: EngineId) -> str:
    return f"engines/{engine}"


@lru_cache(maxsize=4096)  # Each call names one, and there are few.
def engine_id(field: str, name: str) -> EngineId:
    match = ENGINE_NAME.fullmatch(name)
    if match is None:
        refuse(field, name, "not an engine's name", "engines/{uuid}, as Attach gave it")
    return EngineId(match[1])


def block_keys(keys: Sequence[bytes]) -> tuple[BlockKey, ...]:
    # A slice is taken in one go; to walk along the field takes twice as long.
    taken = tuple(keys[:])
    if list(map(len, taken)).count(KEY_BYTES) != len(taken):
        index, key = next((index, key) for index, key in enumerate(taken) if len(key) != KEY_BYTES)
        refuse(f"block_keys[{index}]", key, f"{len(key)} bytes long", f"a digest of {KEY_BYTES} bytes")
    # A cast, for to call a NewType once a key costs more than the check.
    return cast(tuple[BlockKey, ...], taken)


def sequence_ids(field: str, ids: Sequence[int], most: int) -> tuple[SequenceId, ...]:
    if len(ids) > most:
        refuse(field, len(ids), "too many", f"at most {most}")
    return cast(tuple[SequenceId, ...], tuple(ids))


def short_text(field: str, name: str) -> str:
    if len(name.encode()) > TEXT_BYTES_MAX:
        refuse(field, name, "too long", f"at most {TEXT_BYTES_MAX} bytes")
    return name


def seconds(field: str, duration: Duration, least: float = 0.0) -> float:
    seconds = duration.seconds + duration.nanos / 1e9
    if seconds < least:
        refuse(field, f"{seconds:g}s", "too short", f"at least {least:g} seconds")
    return seconds


def uuid4(field: str, text: str) -> str:
    try:
        parsed = UUID(text)
    except ValueError:
        parsed = None
    if parsed is None or parsed.version != 4 or str(parsed) != text.lower():
        refuse(field, text, "not a UUID4", "a random UUID like 01234567-89ab-4cde-8f01-23456789abcd")
    return str(parsed)


def refuse(field: str, value: object, message: str, remedy: str) -> NoReturn:
    shown = value.hex() if isinstance(value, bytes) else value
    raise FieldInvalid(message, field=field, value=shown, remedy=remedy)


def within(path: str, error: FieldInvalid) -> FieldInvalid:
    """The same refusal, told from one message further out."""
    field = f"{path}.{error.field}" if error.field else path
    return FieldInvalid(error.message, field=field, value=error.value, remedy=error.remedy)
