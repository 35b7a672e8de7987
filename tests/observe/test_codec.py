"""Every record comes back from its bytes as it was, whichever kind and field."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import cycle, islice
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct

from kvstore.core import answers, calls, effects, events, notices, operations
from kvstore.core.config import StoreConfig
from kvstore.core.errors import CheckFailed
from kvstore.core.types import StoredKey
from kvstore.observe.codec import Undecodable, _Codec, decode, encode
from kvstore.observe.records import Entry, Heading, Record
from kvstore.observe.v1 import journal_pb2 as pb

MODULES = (operations, calls, events, notices, answers, effects)
KINDS = {
    value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Struct) and value is not Struct
}
# Sequences and steps have 64 bits in the contract, most else 32; in shares the config accepts no number.
NUMBERS = {"number": 2**64 - 1, "sequence": 2**64 - 1, "step": 2**64 - 1, "store_epoch": 2**64 - 1}
SHARES = {
    "high_watermark": 0.75,
    "low_watermark": 0.25,
    "cpu_high_watermark": 0.625,
    "cpu_low_watermark": 0.125,
    "background_wait_seconds": 0.5,
    "copy_from_share": 0.875,
    "default_tenant": "é",
}


def samples(name: str, hint: Any) -> list[Any]:
    """Values that are not zero, so that none comes back by itself; of a union one of each kind."""
    hint = getattr(hint, "__supertype__", hint)
    args = get_args(hint)
    if isinstance(hint, UnionType):
        return [each for kind in args if kind is not NoneType for each in samples(name, kind)] + [
            None for kind in args if kind is NoneType
        ]
    if get_origin(hint) is Mapping:
        return [{"é": 0.25, "b": 0.5} if args[1] is float else {"é": 1, "b": 2}]
    if get_origin(hint) is Sequence or (get_origin(hint) is tuple and args[-1] is Ellipsis):
        return [tuple(samples(name, args[0]) * 2), ()]
    if get_origin(hint) is tuple:
        return [tuple(samples(name, each)[0] for each in args)]
    if issubclass(hint, IntEnum):
        return list(hint)
    if issubclass(hint, bool):
        return [True, False]
    plain = {int: NUMBERS.get(name, 2**31 - 1), float: SHARES.get(name, -1.0 / 3), bytes: b"\0\xff" * 16}
    plain[str] = SHARES.get(name, "é")
    if hint in plain:
        return [plain[hint]]
    columns = {each: samples(each, kind) for each, kind in get_type_hints(hint).items()}
    count = max((len(column) for column in columns.values()), default=1)
    rows = zip(*(islice(cycle(column), count) for column in columns.values()), strict=True)
    return [hint(**dict(zip(columns, row, strict=True))) for row in rows] or [hint()]


def kinds_in(value: object) -> set[type]:
    if isinstance(value, tuple):
        return {kind for each in value for kind in kinds_in(each)}
    if isinstance(value, Struct):
        return {type(value)}.union(*(kinds_in(getattr(value, name)) for name in value.__struct_fields__))
    return set()


ENTRIES = samples("entry", Entry)
HEADINGS = samples("heading", Heading)


@pytest.mark.parametrize("record", [*ENTRIES, *HEADINGS], ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert decode(encode(record)) == record


def test_no_kind_of_event_or_effect_is_forgotten() -> None:
    """Of fields none can be: a record and its message must have the same ones, or nothing is encoded."""
    assert len(KINDS) > 30
    assert kinds_in(tuple(ENTRIES)) >= KINDS | {StoredKey}


def test_every_field_of_the_config_is_written() -> None:
    defaults = StoreConfig(block_tokens=1, gpu_frames=1)
    config = HEADINGS[0].config
    assert all(getattr(config, name) != getattr(defaults, name) for name in get_type_hints(StoreConfig))


class WithOneMore(Struct, frozen=True, kw_only=True):
    time: float
    news: int


def test_a_field_that_the_format_lacks_is_found_at_once() -> None:
    with pytest.raises(CheckFailed, match=r"WithOneMore and its message differ: \{'news'\}"):
        _Codec(WithOneMore, pb.Tick.DESCRIPTOR)


def answered(**answer: Any) -> bytes:
    effects = pb.Effects(answer=pb.Answer(**answer))
    entry = pb.Entry(number=1, event=pb.Event(tick=pb.Tick()), outcome=pb.Outcome(effects=effects))
    return pb.Record(entry=entry).SerializeToString()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"",
        pb.Record(entry=pb.Entry(number=1)).SerializeToString(),
        pb.Record(heading=pb.Heading(format=1)).SerializeToString(),
        answered(keep_alive_answer=pb.KeepAliveAnswer(state=99)),
        answered(lookup_answer=pb.LookupAnswer(blocks_by_tier=[1, 2])),
    ],
    ids=["no message", "empty", "no event", "no config", "no such state", "two of three"],
)
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(Undecodable):
        decode(data)
