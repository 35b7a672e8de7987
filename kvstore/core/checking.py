"""Checks a whole step before any of it is applied: after this nothing can refuse.

Operations are checked in the order in which they will be applied, against what the engine
holds and what earlier phases of the same step will have changed. What a field may be whatever else
there is stands in `bounds.py`.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from kvstore.core.bounds import CHILDREN_MAX, FREED_MAX, at_most, check_keys, check_session, check_tenant
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine
from kvstore.core.errors import FieldInvalid, KVStoreError, SequenceUnknown
from kvstore.core.operations import (
    Allocate,
    Commit,
    EndSession,
    Fork,
    Free,
    Grow,
    Operation,
    Swap,
    UpdateActivity,
)
from kvstore.core.phases import Phases
from kvstore.core.types import DROPPED, SWAPPING_IN, BlockKey, Direction, SequenceId, blocks_for_tokens

__all__ = ["check_operations"]

# What the fields of an Allocate are called in a Grow.
COLUMNS = {"sequence": "sequences", "token_count": "token_counts", "known_blocks": "known_blocks"}


class _Outlook(Struct):
    """What the engine will hold as the phases go by."""

    config: StoreConfig
    engine: Engine
    # Keys that this step commits, behind those that are committed; token counts of new children.
    committed: dict[SequenceId, list[BlockKey]] = {}
    children: dict[SequenceId, int] = {}
    freed: set[SequenceId] = set()
    # As named, one that is named twice counted twice.
    freed_count: int = 0
    created: set[SequenceId] = set()

    def token_count(self, sequence: SequenceId, field: str) -> int:
        """Tokens of a sequence that exists at this point of the step."""
        if sequence in self.engine.sequences and sequence not in self.freed:
            return self.engine.sequences[sequence].token_count
        if sequence in self.children and sequence not in self.freed:
            return self.children[sequence]
        raise SequenceUnknown(
            "the engine has no such sequence" + (", this step frees it" if sequence in self.freed else ""),
            field=field,
            value=sequence,
            remedy="Allocate or Fork creates a sequence",
        )


def check_operations(config: StoreConfig, engine: Engine, phases: Phases) -> None:
    """Raises the refusal that the step deserves, if any. Changes nothing."""
    grown = sum([len(operation.sequences) - 1 for _, operation in phases.of(Grow)])
    at_most("operations", phases.count + grown, config.operations_max)
    outlook = _Outlook(config, engine)
    # A kind is checked whole before the next begins.
    for kind in phases.kinds:
        name, check = _CHECKS[kind]
        _check_each(outlook, name, check, phases.of(kind))


def _check_each(
    outlook: _Outlook, name: str, check: "_Check", operations: Iterable[tuple[int, Operation]]
) -> None:
    """A check names the field within its operation; where that stands is added here."""
    for index, operation in operations:
        try:
            check(outlook, operation)
        except KVStoreError as error:
            error.field = f"operations[{index}].{name}.{error.field}"
            raise


def _check_free(outlook: _Outlook, operation: Free) -> None:
    at_most("sequences", len(operation.sequences), FREED_MAX)
    outlook.freed_count += len(operation.sequences)
    at_most("sequences", outlook.freed_count, outlook.config.sequences_max, "in one step")
    outlook.freed.update(operation.sequences)


def _check_swap(outlook: _Outlook, operation: Swap) -> None:
    tokens = outlook.token_count(operation.sequence, "sequence")
    if operation.direction is Direction.OUT:
        at_most("filled_tokens", operation.filled_tokens, tokens)


def _check_update(outlook: _Outlook, operation: UpdateActivity) -> None:
    tokens = outlook.token_count(operation.sequence, "sequence")
    at_most("filled_tokens", operation.filled_tokens, tokens)


def _check_end(outlook: _Outlook, operation: EndSession) -> None:
    check_session(operation.session)
    if not operation.session:
        raise FieldInvalid("empty", field="session", remedy="name the session")
    check_tenant(outlook.config, operation.tenant)


def _check_allocate(outlook: _Outlook, operation: Allocate) -> None:
    config, tokens, keys = outlook.config, operation.token_count, operation.block_keys
    if tokens < 1:
        raise FieldInvalid("no tokens", field="token_count", value=tokens, remedy="at least 1")
    at_most("token_count", tokens, config.tokens_max)
    at_most("known_blocks", operation.known_blocks, blocks_for_tokens(tokens, config.block_tokens))
    if keys:
        at_most("block_keys", len(keys), tokens // config.block_tokens)
        check_keys(keys)
    if operation.session:
        check_session(operation.session)
    check_tenant(config, operation.tenant)
    if operation.sequence in outlook.freed:
        raise FieldInvalid(
            "this step frees the sequence",
            field="sequence",
            value=operation.sequence,
            remedy="ids are never used again: choose a new one",
        )
    if operation.sequence not in outlook.engine.sequences and operation.sequence not in outlook.children:
        _count_new(outlook, operation.sequence, "sequence")


def _check_grow(outlook: _Outlook, operation: Grow) -> None:
    """Sequence by sequence as an Allocate of it; the fields are those of the columns."""
    config, freed, known = outlook.config, outlook.freed, outlook.engine.sequences
    lengths = len(operation.sequences), len(operation.token_counts), len(operation.known_blocks)
    if len(set(lengths)) > 1:
        raise FieldInvalid(
            "columns of different lengths", field="sequences", value=lengths, remedy="one entry a sequence"
        )
    size, most = config.block_tokens, config.tokens_max
    for place, (sequence, tokens, blocks) in enumerate(
        zip(operation.sequences, operation.token_counts, operation.known_blocks, strict=True)
    ):
        # All is well with nearly all of them: what is wrong is found out by a check of its own.
        good = 0 < tokens <= most and blocks * size < tokens + size
        if not good or sequence in freed or sequence not in known:
            single = Allocate(sequence=sequence, token_count=tokens, known_blocks=blocks)
            try:
                _check_allocate(outlook, single)
            except KVStoreError as error:
                error.field = f"{COLUMNS[error.field]}[{place}]"
                raise


def _check_commit(outlook: _Outlook, operation: Commit) -> None:
    tokens = outlook.token_count(operation.sequence, "sequence")
    sequence = outlook.engine.sequences[operation.sequence]
    check_keys(operation.block_keys)
    if sequence.state is DROPPED:
        return
    first, keys = operation.first_block, operation.block_keys
    new = outlook.committed.setdefault(operation.sequence, [])
    done, end = sequence.committed + len(new), first + len(keys)
    if first > done:
        raise FieldInvalid(
            f"blocks from {done} on are not committed yet",
            field="first_block",
            value=first,
            remedy="commit blocks in order",
        )
    at_most("block_keys", end, tokens // outlook.config.block_tokens, "full blocks of the sequence")
    known = sequence.keys[first : min(sequence.committed, end)]
    if end > sequence.committed:
        known = [*known, *new[max(0, first - sequence.committed) :]]
    for index, (key, known_key) in enumerate(zip(keys, known, strict=False)):
        if key != known_key:
            raise FieldInvalid(
                "the block is committed under another key",
                field=f"block_keys[{index}]",
                value=key.hex(),
                remedy="a block's content and key never change",
            )
    new += keys[len(known) :]
    if end > done and sequence.state is SWAPPING_IN:
        raise FieldInvalid(
            "the sequence is being swapped in: nothing can have been computed into it",
            field="sequence",
            value=operation.sequence,
            remedy="wait for SequenceMoved(RESIDENT)",
        )


def _check_fork(outlook: _Outlook, operation: Fork) -> None:
    tokens = outlook.token_count(operation.parent, "parent")
    at_most("children", len(operation.children), CHILDREN_MAX)
    if operation.parent in operation.children:
        raise FieldInvalid(
            "a sequence can't be its own child",
            field="children",
            value=operation.parent,
            remedy="choose new ids for children",
        )
    for child in operation.children:
        if child not in outlook.engine.sequences and child not in outlook.children:
            _count_new(outlook, child, "children")
            outlook.children[child] = tokens


def _count_new(outlook: _Outlook, sequence: SequenceId, field: str) -> None:
    outlook.created.add(sequence)
    held = len(outlook.engine.sequences) + len(outlook.created)
    at_most(field, held, outlook.config.sequences_max, "sequences of one engine")


_Check = Callable[[_Outlook, Any], None]
# By kind: what the contract calls it, and what refuses it.
_CHECKS: dict[type[Any], tuple[str, _Check]] = {
    Commit: ("commit", _check_commit),
    Fork: ("fork", _check_fork),
    Free: ("free", _check_free),
    UpdateActivity: ("update_activity", _check_update),
    EndSession: ("end_session", _check_end),
    Swap: ("swap", _check_swap),
    Grow: ("grow", _check_grow),
    Allocate: ("allocate", _check_allocate),
}
