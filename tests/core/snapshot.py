"""All state of a store as plain data, to be compared before and after."""

from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum

import numpy as np
from msgspec import Struct

from kvstore.core.store import Store

__all__ = ["snapshot"]

# Any call renews its engine's lease, a refused one too; who is to be woken is reset by each event;
# scratch, and how far a log has been read, change with each look, and a note to itself with each event.
IGNORED = {"lease_expire_time", "_woken", "_seen", "_looked_at", "_begin", "room_was_made", "now"}


def snapshot(store: Store) -> object:
    return _plain(store, {})


def _plain(value: object, seen: dict[int, int]) -> object:
    if value is None or isinstance(value, bool | int | float | str | bytes | Enum):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, array):
        return value.tolist()
    if id(value) in seen:
        return "seen", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, Mapping):
        return [(_plain(key, seen), _plain(each, seen)) for key, each in value.items()]
    if isinstance(value, list | tuple | deque):
        return [_plain(each, seen) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_plain(each, seen)) for each in value)
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return type(value).__name__, [
        (name, _plain(getattr(value, name), seen)) for name in _names(value) if name not in IGNORED
    ]


def _names(value: object) -> list[str]:
    if is_dataclass(value):
        return [each.name for each in fields(value)]
    if isinstance(value, Struct):
        return list(value.__struct_fields__)
    return list(vars(value))
