"""What is told of what happens in the store: to the engines that it concerns, and to those who watch.

Revisions count it, and all know one event by the same revision (`news.py`).
"""

from msgspec import Struct

from kvstore.core.types import (
    BlockKey,
    EngineId,
    Frame,
    NamespaceId,
    Pressure,
    Revision,
    SequenceId,
    SequenceState,
    TenantId,
    Tier,
)

__all__ = [
    "BlocksRemoved",
    "BlocksStored",
    "EngineGone",
    "Happening",
    "Notice",
    "PressureChanged",
    "SequenceMoved",
]

# --------------------------------------------------------------------------- for engines


class SequenceMoved(Struct, frozen=True, kw_only=True, gc=False):
    """A sequence's state has changed by itself; the table is told where it is RESIDENT."""

    revision: Revision
    engine: EngineId
    sequence: SequenceId
    state: SequenceState
    block_table: tuple[Frame, ...]
    valid_tokens: int


class PressureChanged(Struct, frozen=True, kw_only=True, gc=False):
    revision: Revision
    tier: Tier
    pressure: Pressure


Notice = SequenceMoved | PressureChanged

# ------------------------------------------------------------------- for those who watch


class BlocksStored(Struct, frozen=True, kw_only=True, gc=False):
    """Blocks that can be found by their keys, and in this tier, from now on."""

    revision: Revision
    tier: Tier
    namespace: NamespaceId
    tenant: TenantId
    keys: tuple[BlockKey, ...]


class BlocksRemoved(Struct, frozen=True, kw_only=True, gc=False):
    """Blocks that can't be found in this tier any more."""

    revision: Revision
    tier: Tier
    namespace: NamespaceId
    tenant: TenantId
    keys: tuple[BlockKey, ...]


class EngineGone(Struct, frozen=True, kw_only=True, gc=False):
    """An engine's lease has run out, or its last tether has closed without a Detach."""

    revision: Revision
    engine: EngineId


Happening = SequenceMoved | PressureChanged | BlocksStored | BlocksRemoved | EngineGone
