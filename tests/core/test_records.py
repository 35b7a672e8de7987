"""Events and effects are plain data: a journal can write them down and a replayer read them back."""

import json
from collections.abc import Sequence
from enum import Enum
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct
from msgspec.structs import fields

from kvstore.core import answers, calls, effects, events, notices, operations
from kvstore.core.types import StoredKey
from tests.core.fuzz import Fuzz

MODULES = (operations, calls, events, notices, answers, effects)
RECORDS = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Struct) and value is not Struct
} | {"StoredKey": StoredKey}


def to_json(value: object) -> Any:
    """Records as dicts with their name, tuples as lists, bytes as hex."""
    if isinstance(value, Struct):
        return {"record": type(value).__name__} | {
            each.name: to_json(getattr(value, each.name)) for each in fields(value)
        }
    if isinstance(value, tuple):
        return [to_json(each) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    return value.value if isinstance(value, Enum) else value


def from_json(hint: Any, value: Any) -> Any:
    hint = getattr(hint, "__supertype__", hint)
    if isinstance(value, dict):
        record = RECORDS[value["record"]]
        hints = get_type_hints(record)
        return record(**{each.name: from_json(hints[each.name], value[each.name]) for each in fields(record)})
    if isinstance(value, list):
        inner = get_args(hint)
        each_hint = inner if inner and inner[-1] is not Ellipsis else [inner[0]] * len(value)
        return tuple(from_json(one, each) for one, each in zip(each_hint, value, strict=True))
    if value is None:
        return None
    if hint is bytes:
        return bytes.fromhex(value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return value


def is_plain(hint: Any) -> bool:
    """A number, a string, bytes, an enum, a record, or a sequence of those."""
    hint = getattr(hint, "__supertype__", hint)
    if get_origin(hint) in (tuple, Sequence):
        return all(each is Ellipsis or is_plain(each) for each in get_args(hint))
    if isinstance(hint, UnionType):
        return all(is_plain(each) for each in get_args(hint))
    if hint in (int, float, str, bytes, bool, type(None)):
        return True
    return isinstance(hint, type) and (issubclass(hint, Enum) or hint in RECORDS.values())


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_is_frozen_and_every_field_plain(name: str) -> None:
    record = RECORDS[name]
    assert record.__struct_config__.frozen
    assert not record.__struct_config__.gc
    for field, hint in get_type_hints(record).items():
        assert is_plain(hint), f"{name}.{field}: {hint}"


def test_all_that_a_run_sees_comes_back_from_json_as_it_was() -> None:
    run = Fuzz(3, cpu_frames=12, disk_frames=20)
    seen: list[object] = [record for noted in run.note(60) for record in noted]
    kinds = set()
    for record in seen:
        text = json.dumps(to_json(record))
        assert from_json(None, json.loads(text)) == record
        kinds |= {name for name in RECORDS if f'"record": "{name}"' in text}
    assert kinds >= {"Step", "StepAnswer", "Transfer", "TransferEnded", "SequenceMoved", "AllocateResult"}
