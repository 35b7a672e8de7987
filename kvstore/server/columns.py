"""Grow, the operation of most steps: Allocates in columns.

The core knows Allocates alone. Columns become one for each sequence on the way in, and their results
become columns again on the way out; so a step's operations and the core's are not the same in number.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import repeat

from kvstore.core.effects import AllocateResult, Result
from kvstore.core.errors import KVStoreError
from kvstore.core.events import Allocate, Operation
from kvstore.core.types import OK, RESIDENT
from kvstore.server.encode_results import fill_allocate
from kvstore.server.fields import refuse
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Columns", "fill_grow", "from_columns", "outside_columns"]

# By the place of each Grow in its step: how many sequences it names.
Columns = Mapping[int, int]

FIELD = re.compile(r"operations\[(\d+)\](?:\.allocate\.(\w+))?(.*)")
# What the fields of an Allocate are in columns.
COLUMN_NAMES = {"sequence": "sequences", "token_count": "token_counts", "known_blocks": "known_blocks"}


def from_columns(request: pb.GrowRequest, most: int) -> list[Allocate]:
    sequences, tokens, known = request.sequences[:], request.token_counts[:], request.known_blocks[:]
    if len(sequences) > most:
        refuse("sequences", len(sequences), "too many", f"at most {most} more in this step")
    for name, column in (("token_counts", tokens), ("known_blocks", known)):
        if len(column) != len(sequences) and (column or name == "token_counts"):
            refuse(name, len(column), "not as long as sequences", f"{len(sequences)}, one for each")
    return [
        # The ids are of their types; to call a NewType costs more than to make the record.
        Allocate(sequence=sequence, token_count=count, known_blocks=blocks)  # type: ignore[arg-type]
        for sequence, count, blocks in zip(sequences, tokens, known or repeat(0), strict=False)
    ]


def fill_grow(response: pb.GrowResponse, operations: Sequence[Operation], results: Sequence[Result]) -> None:
    counts: list[int] = []
    frames: list[int] = []
    for place, (operation, result) in enumerate(zip(operations, results, strict=True)):
        if not isinstance(operation, Allocate) or not isinstance(result, AllocateResult):
            raise TypeError(f"a Grow of {operation} was answered by {result}")
        grown = result.outcome is OK and result.state is RESIDENT
        if grown and 0 < operation.known_blocks == result.first_block:
            counts.append(len(result.block_table))
            frames += result.block_table
        else:
            counts.append(0)
            fill_allocate(response.others.add(place=place).result, result)
    response.frame_counts.extend(counts)
    response.frames.extend(frames)


def outside_columns(error: KVStoreError, columns: Columns) -> KVStoreError:
    """The core names fields of its own operations; the caller knows the step's."""
    match = FIELD.fullmatch(error.field) if columns else None
    if match is None:
        return error
    place, name, rest = int(match[1]), match[2], match[3]
    named = f".allocate.{name}" if name else ""
    for index, count in sorted(columns.items()):
        if place < index:
            break
        if place < index + count:
            field = f"operations[{index}].grow.{COLUMN_NAMES.get(name, name)}[{place - index}]"
            return _renamed(error, field)
        # Those behind a Grow of n sequences stand n - 1 further on in the core.
        place -= count - 1
    return _renamed(error, f"operations[{place}]{named}{rest}")


def _renamed(error: KVStoreError, field: str) -> KVStoreError:
    return type(error)(error.message, field=field, value=error.value, remedy=error.remedy)
