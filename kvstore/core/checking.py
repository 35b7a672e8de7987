"""Checks a whole step before any of it is applied: after this nothing can refuse.

Operations are checked in the order in which they will be applied, against what the engine
holds and what earlier phases of the same step will have changed.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine
from kvstore.core.errors import FieldInvalid, SequenceUnknown, TenantRefused
from kvstore.core.events import (
    Allocate,
    Commit,
    EndSession,
    Fork,
    Free,
    Operation,
    Swap,
    UpdateActivity,
)
from kvstore.core.types import (
    BlockKey,
    Direction,
    SequenceId,
    SequenceState,
    StepNumber,
    blocks_for_tokens,
)

__all__ = [
    "CHILDREN_MAX",
    "FREED_MAX",
    "KEY_BYTES",
    "check_completed",
    "check_operations",
    "check_tenant",
]

CHILDREN_MAX = 64
FREED_MAX = 4096
SESSION_BYTES_MAX = 256
KEY_BYTES = 32


@dataclass(slots=True)
class _Outlook:
    """What the engine will hold as the phases go by."""

    config: StoreConfig
    engine: Engine
    # Keys by block that this step commits; token counts of new children.
    committed: dict[SequenceId, dict[int, BlockKey]] = field(default_factory=dict)
    children: dict[SequenceId, int] = field(default_factory=dict)
    freed: set[SequenceId] = field(default_factory=set)
    # As named, one that is named twice counted twice.
    freed_count: int = 0
    created: set[SequenceId] = field(default_factory=set)

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


def check_operations(config: StoreConfig, engine: Engine, operations: Many[Operation]) -> None:
    """Raises the refusal that the step deserves, if any. Changes nothing."""
    _at_most("operations", len(operations), config.operations_max)
    outlook = _Outlook(config, engine)
    # In the order of the phases; a kind is checked whole before the next begins.
    for kind in (Commit, Fork, Free, UpdateActivity, EndSession, Swap, Allocate):
        for index, operation in enumerate(operations):
            if isinstance(operation, kind):
                _check(outlook, operation, f"operations[{index}]")


def check_completed(completed_step: StepNumber, oldest: StepNumber, newest: StepNumber) -> None:
    if not oldest <= completed_step <= newest:
        raise FieldInvalid(
            f"not between {oldest} and {newest}",
            field="completed_step",
            value=completed_step,
            remedy="name the last step whose GPU work has finished",
        )


def check_tenant(config: StoreConfig, tenant: str, field: str) -> None:
    if tenant and tenant not in config.tenants:
        raise TenantRefused(
            "not a tenant of this socket",
            field=field,
            value=tenant,
            remedy="name one of " + ", ".join(sorted(config.tenants)) + ", or none for the default",
        )


def _check(outlook: _Outlook, operation: Operation, where: str) -> None:
    match operation:
        case Allocate():
            _check_allocate(outlook, operation, f"{where}.allocate")
        case Commit():
            _check_commit(outlook, operation, f"{where}.commit")
        case Fork():
            _check_fork(outlook, operation, f"{where}.fork")
        case Free():
            _at_most(f"{where}.free.sequences", len(operation.sequences), FREED_MAX)
            outlook.freed_count += len(operation.sequences)
            _at_most(
                f"{where}.free.sequences", outlook.freed_count, outlook.config.sequences_max, "in one step"
            )
            outlook.freed.update(operation.sequences)
        case Swap():
            tokens = outlook.token_count(operation.sequence, f"{where}.swap.sequence")
            if operation.direction is Direction.OUT:
                _at_most(f"{where}.swap.filled_tokens", operation.filled_tokens, tokens)
        case UpdateActivity():
            tokens = outlook.token_count(operation.sequence, f"{where}.update_activity.sequence")
            _at_most(f"{where}.update_activity.filled_tokens", operation.filled_tokens, tokens)
        case EndSession():
            _check_session(operation.session, f"{where}.end_session.session")
            if not operation.session:
                raise FieldInvalid("empty", field=f"{where}.end_session.session", remedy="name the session")
            check_tenant(outlook.config, operation.tenant, f"{where}.end_session.tenant")


def _check_allocate(outlook: _Outlook, operation: Allocate, where: str) -> None:
    config, engine = outlook.config, outlook.engine
    if operation.token_count < 1:
        raise FieldInvalid("no tokens", field=f"{where}.token_count", value=0, remedy="at least 1")
    _at_most(f"{where}.token_count", operation.token_count, config.tokens_max)
    _at_most(f"{where}.block_keys", len(operation.block_keys), operation.token_count // config.block_tokens)
    _check_keys(operation.block_keys, f"{where}.block_keys")
    blocks = blocks_for_tokens(operation.token_count, config.block_tokens)
    _at_most(f"{where}.known_blocks", operation.known_blocks, blocks)
    _check_session(operation.session, f"{where}.session")
    check_tenant(config, operation.tenant, f"{where}.tenant")
    if operation.sequence in outlook.freed:
        raise FieldInvalid(
            "this step frees the sequence",
            field=f"{where}.sequence",
            value=operation.sequence,
            remedy="ids are never used again: choose a new one",
        )
    if operation.sequence not in engine.sequences and operation.sequence not in outlook.children:
        _count_new(outlook, operation.sequence, f"{where}.sequence")


def _check_commit(outlook: _Outlook, operation: Commit, where: str) -> None:
    tokens = outlook.token_count(operation.sequence, f"{where}.sequence")
    sequence = outlook.engine.sequences[operation.sequence]
    _check_keys(operation.block_keys, f"{where}.block_keys")
    if sequence.state is SequenceState.DROPPED:
        return
    new = outlook.committed.setdefault(operation.sequence, {})
    done = sequence.committed + len(new)
    end = operation.first_block + len(operation.block_keys)
    if operation.first_block > done:
        raise FieldInvalid(
            f"blocks from {done} on are not committed yet",
            field=f"{where}.first_block",
            value=operation.first_block,
            remedy="commit blocks in order",
        )
    _at_most(f"{where}.block_keys", end, tokens // outlook.config.block_tokens, "full blocks of the sequence")
    for place, key in enumerate(operation.block_keys, operation.first_block):
        known = sequence.keys[place] if place < sequence.committed else new.setdefault(place, key)
        if key != known:
            raise FieldInvalid(
                "the block is committed under another key",
                field=f"{where}.block_keys[{place - operation.first_block}]",
                value=key.hex(),
                remedy="a block's content and key never change",
            )
    if end > done and sequence.state is SequenceState.SWAPPING_IN:
        raise FieldInvalid(
            "the sequence is being swapped in: nothing can have been computed into it",
            field=f"{where}.sequence",
            value=operation.sequence,
            remedy="wait for SequenceMoved(RESIDENT)",
        )


def _check_fork(outlook: _Outlook, operation: Fork, where: str) -> None:
    tokens = outlook.token_count(operation.parent, f"{where}.parent")
    _at_most(f"{where}.children", len(operation.children), CHILDREN_MAX)
    if operation.parent in operation.children:
        raise FieldInvalid(
            "a sequence can't be its own child",
            field=f"{where}.children",
            value=operation.parent,
            remedy="choose new ids for children",
        )
    for child in operation.children:
        if child not in outlook.engine.sequences and child not in outlook.children:
            _count_new(outlook, child, f"{where}.children")
            outlook.children[child] = tokens


def _count_new(outlook: _Outlook, sequence: SequenceId, where: str) -> None:
    outlook.created.add(sequence)
    held = len(outlook.engine.sequences) + len(outlook.created)
    _at_most(where, held, outlook.config.sequences_max, "sequences of one engine")


def _check_keys(keys: Iterable[BlockKey], where: str) -> None:
    for index, key in enumerate(keys):
        if len(key) != KEY_BYTES:
            raise FieldInvalid(
                f"{len(key)} bytes long",
                field=f"{where}[{index}]",
                value=key.hex()[:64],
                remedy=f"a block key is a digest of {KEY_BYTES} bytes",
            )


def _check_session(session: str, where: str) -> None:
    _at_most(where, len(session.encode()), SESSION_BYTES_MAX, "bytes")


def _at_most(field: str, value: int, most: int, unit: str = "") -> None:
    if value > most:
        raise FieldInvalid(
            "too many" if unit else "too large",
            field=field,
            value=value,
            remedy=f"at most {most} {unit}".rstrip(),
        )
