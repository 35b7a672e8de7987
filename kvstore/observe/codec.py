"""Records as the bytes of journal.proto, and back.

There is no table of fields: a record and its message have the same names, and what a field holds is
read off the record's type hints. Built once at import, where a field that only one of the two has is
found. On the way out a record becomes dicts, out of which protobuf makes the message in one go: twice as
fast as message by message. Zero values are left out, as proto3 does.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from kvstore.core.errors import KVStoreError, check
from kvstore.observe.records import Record
from kvstore.observe.v1 import journal_pb2 as pb

__all__ = ["Undecodable", "decode", "encode"]

Convert = Callable[[Any], Any]
# Out and back. None: a message holds it as it is.
Converts = tuple[Convert | None, Convert | None]
PLAIN = (int, float, str, bytes)


class Undecodable(Exception):
    """Bytes that are no record, though their checksum may be right: written by another version."""


def encode(record: Record) -> bytes:
    return pb.Record(**_to_dict(record)).SerializeToString()


def decode(data: bytes) -> Record:
    try:
        record: Record = _to_record(pb.Record.FromString(data))
    except (DecodeError, KVStoreError, ValueError, TypeError, KeyError) as error:
        raise Undecodable(str(error) or type(error).__name__) from error
    return record


class _Codec:
    """One class of records and its message."""

    def __init__(self, kind: type, message: Descriptor) -> None:
        hints = get_type_hints(kind)
        theirs = set(message.fields_by_name)
        check(hints.keys() == theirs, f"{kind.__name__} and its message differ: {hints.keys() ^ theirs}")
        self._kind = kind
        self._out: list[tuple[str, Convert | None]] = []
        self._in: list[tuple[str, Convert | None]] = []
        # Fields that may be None, and then are not there.
        self._optional: set[str] = set()
        for name, hint in hints.items():
            if isinstance(hint, UnionType) and NoneType in get_args(hint):
                (hint,) = set(get_args(hint)) - {NoneType}
                self._optional.add(name)
            to_dict, to_record = _field(hint, message.fields_by_name[name])
            self._out.append((name, to_dict))
            self._in.append((name, to_record))

    def to_dict(self, record: object) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, convert in self._out:
            value = getattr(record, name)
            if value:
                values[name] = value if convert is None else convert(value)
        return values

    def to_record(self, message: Message) -> Any:
        values = {}
        for name, convert in self._in:
            value: Any = getattr(message, name)
            if name in self._optional and not message.HasField(name):
                value = None
            elif convert is not None:
                value = convert(value)
            values[name] = value
        return self._kind(**values)


_codecs: dict[type, _Codec] = {}


def _field(hint: Any, field: FieldDescriptor) -> Converts:
    """How what a field holds becomes what its message's field holds, and back."""
    args = get_args(hint)
    if get_origin(hint) is Mapping:
        pair_out, pair_in = _pair(_message(field))
        return (
            lambda value: [pair_out(each) for each in value.items()],
            lambda value: dict(pair_in(each) for each in value),
        )
    if get_origin(hint) not in (tuple, Sequence):
        return _value(hint, field)
    if get_origin(hint) is tuple and args[-1] is not Ellipsis:
        return None, _fixed(len(args))
    out, back = _value(args[0], field)
    return (
        None if out is None else lambda value: [out(each) for each in value],
        tuple if back is None else lambda value: tuple([back(each) for each in value]),
    )


def _value(hint: Any, field: FieldDescriptor) -> Converts:
    hint = getattr(hint, "__supertype__", hint)
    if isinstance(hint, UnionType):
        return _union(get_args(hint), _message(field))
    if get_origin(hint) is tuple:
        return _pair(_message(field))
    if issubclass(hint, IntEnum):
        return None, hint
    if issubclass(hint, PLAIN):
        return None, None
    codec = _codec(hint, _message(field))
    return codec.to_dict, codec.to_record


def _codec(kind: type, message: Descriptor) -> _Codec:
    if kind not in _codecs:
        _codecs[kind] = _Codec(kind, message)
    return _codecs[kind]


def _message(field: FieldDescriptor) -> Descriptor:
    check(field.message_type is not None, f"{field.full_name} is no message")
    return cast(Descriptor, field.message_type)


def _union(kinds: tuple[type, ...], message: Descriptor) -> tuple[Convert, Convert]:
    """One of several records: a message with one field for each, named like it."""
    fields = {_message(field).name: field for field in message.fields}
    names = {kind.__name__ for kind in kinds}
    check(names == fields.keys(), f"{message.name} lacks or has too many: {names ^ fields.keys()}")
    outs: dict[type, tuple[str, Convert]] = {}
    ins: dict[str | None, tuple[str, Convert]] = {}
    for kind in kinds:
        field = fields[kind.__name__]
        codec = _codec(kind, _message(field))
        outs[kind] = field.name, codec.to_dict
        ins[field.name] = field.name, codec.to_record

    def out(value: object) -> dict[str, Any]:
        name, convert = outs[type(value)]
        return {name: convert(value)}

    def back(value: Message) -> Any:
        name, convert = ins[value.WhichOneof("kind")]
        return convert(getattr(value, name))

    return out, back


def _pair(message: Descriptor) -> tuple[Convert, Convert]:
    """A tuple of two: a message of two fields."""
    first, second = (field.name for field in message.fields)
    return (
        lambda value: {first: value[0], second: value[1]},
        lambda value: (getattr(value, first), getattr(value, second)),
    )


def _fixed(length: int) -> Convert:
    def back(value: Any) -> tuple[Any, ...]:
        if len(value) != length:
            raise ValueError(f"{len(value)} numbers in the place of {length}")
        return tuple(value)

    return back


_to_dict, _to_record = _union(get_args(Record), pb.Record.DESCRIPTOR)
