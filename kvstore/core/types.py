"""Ids, enums and small records that the core, the policies and the shells share.

Numbers of the enums are those of the contract (protos/kvstore/v1/kvstore.proto), except
`Tier`, which counts from zero because it indexes the rows of the core's arrays.
"""

from enum import IntEnum
from typing import NewType

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

__all__ = [
    "READ",
    "WRITE",
    "LOAD",
    "COPY",
    "Link",
    "LinkCost",
    "PARKED",
    "WAITING",
    "RUNNING",
    "NEVER",
    "LATER",
    "OK",
    "ASKED",
    "NEEDED",
    "PREFETCH",
    "BACKGROUND",
    "DROPPED",
    "SWAPPING_IN",
    "SWAPPED",
    "SWAPPING_OUT",
    "RESIDENT",
    "DISK",
    "CPU",
    "GPU",
    "Activity",
    "BlockKey",
    "BlockRow",
    "ChainPlace",
    "DomainId",
    "Direction",
    "EngineId",
    "EngineState",
    "ForgetId",
    "Frame",
    "NamespaceId",
    "Number",
    "Outcome",
    "Pressure",
    "Retention",
    "Revision",
    "Rows",
    "SequenceId",
    "SequenceState",
    "SessionName",
    "StepNumber",
    "StepTiming",
    "StoredKey",
    "StoredSession",
    "SwapMode",
    "SyncId",
    "TenantId",
    "Tier",
    "TransferId",
    "Urgency",
    "Watermarks",
    "WriterId",
    "blocks_for_tokens",
    "domain_id",
    "domain_parts",
    "TENANT_MASK",
]

# A UUID as text; the contract's name is `engines/{id}`.
EngineId = NewType("EngineId", str)
# Chosen by the engine, unique among its own.
SequenceId = NewType("SequenceId", int)
StepNumber = NewType("StepNumber", int)
# Counts the events of the store; each event told to an engine has one of its own.
Revision = NewType("Revision", int)
TransferId = NewType("TransferId", int)
ForgetId = NewType("ForgetId", int)
SyncId = NewType("SyncId", int)

# 32 bytes: chained digest over everything that a block's KV depends on.
BlockKey = NewType("BlockKey", bytes)
# Where a block stands: its number in its chain, from 0, the key right above it (none: empty), and its own.
ChainPlace = tuple[int, BlockKey, BlockKey]
# The index of a logical block in the core's arrays.
BlockRow = NewType("BlockRow", int)
# Many of them: machine words, as numpy wants its indices.
Rows = NDArray[np.intp]
# A block-sized place in one tier's pool. On disk: a slot of the tier's capacity.
Frame = NewType("Frame", int)

# Four-byte ids that the disk tier hands out and keeps.
NamespaceId = NewType("NamespaceId", int)
TenantId = NewType("TenantId", int)
# An engine's id and build, as kept with what it committed.
WriterId = NewType("WriterId", int)
# What a prefix index is for: namespace and tenant in one number (see `prefix.domain_id`).
DomainId = NewType("DomainId", int)


class Number(IntEnum):
    """An enum whose members are found in a dict as quickly as numbers: Enum hashes their names, in Python."""

    __hash__ = int.__hash__


class Tier(Number):
    GPU = 0
    CPU = 1
    DISK = 2


class Outcome(Number):
    """What became of an operation for want of memory. Never an error."""

    OK = 1
    LATER = 2
    NEVER = 3


class SequenceState(Number):
    """Where a sequence's blocks are. The moves are a table in `sequences.py`."""

    RESIDENT = 1
    SWAPPING_OUT = 2
    SWAPPED = 3
    SWAPPING_IN = 4
    DROPPED = 5


class Activity(Number):
    """What the engine does with a sequence; the engine's word, never the store's."""

    RUNNING = 1
    WAITING = 2
    PARKED = 3


class EngineState(Number):
    ATTACHED = 1
    EXPIRED = 2
    DETACHED = 3


class Direction(Number):
    IN = 1
    OUT = 2


class SwapMode(Number):
    AUTO = 0
    KEEP = 1
    DROP = 2


class Retention(Number):
    DEFAULT = 0
    CACHE = 1
    SESSION = 2
    DISCARD = 3


class Pressure(Number):
    LOW = 1
    HIGH = 2
    FULL = 3


class Urgency(Number):
    """For whom blocks move. What stands before goes before, on each link."""

    # An engine's load.
    ASKED = 1
    # A copy down that somebody's room waits for.
    NEEDED = 2
    # Told ahead, and asked for by nobody yet.
    PREFETCH = 3
    # Cached blocks on their way down.
    BACKGROUND = 4


# Members by themselves: Python 3.11 takes 0.14 us to find one in its enum, as long as a step of numpy's.
GPU, CPU, DISK = Tier
OK, LATER, NEVER = Outcome
RESIDENT, SWAPPING_OUT, SWAPPED, SWAPPING_IN, DROPPED = SequenceState
RUNNING, WAITING, PARKED = Activity
ASKED, NEEDED, PREFETCH, BACKGROUND = Urgency

# From one tier to its neighbour.
Link = tuple[Tier, Tier]
COPY: Link = (GPU, CPU)
LOAD: Link = (CPU, GPU)
WRITE: Link = (CPU, DISK)
READ: Link = (DISK, CPU)


class StoredKey(Struct, frozen=True, kw_only=True, gc=False):
    """A block as the disk names it. `parent` is empty for the first block of a chain.

    `owner` is a number for the session that has committed it (`sequences.session_owner`); 0: none has.
    """

    namespace: NamespaceId
    tenant: TenantId
    key: BlockKey
    parent: BlockKey
    writer: WriterId
    owner: int = 0


class SessionName(Struct, frozen=True, kw_only=True, gc=False):
    """A chat session of a tenant, in a namespace."""

    namespace: NamespaceId
    tenant: TenantId
    name: str


class StoredSession(Struct, frozen=True, kw_only=True, gc=False):
    """A session between two turns, as the disk keeps it: the number of its last turn, and the keys of the
    chain that this turn left committed, head first. Its blocks may be gone all the same."""

    namespace: NamespaceId
    tenant: TenantId
    name: str
    turn: int
    keys: tuple[BlockKey, ...]


class Watermarks(Struct, frozen=True, kw_only=True, gc=False):
    """Shares of a tier's frames in use: pressure is HIGH from the one on, and LOW again below the other."""

    tier: Tier
    high: float
    low: float


class StepTiming(Struct, frozen=True, kw_only=True, gc=False):
    """How long the work of a step took, and what it was.

    `prefill_context`: over its prefilled pieces, of n tokens behind p each, the sum of n·p + n²/2;
    `decode_context`: the sum of the context lengths of its decoded sequences.
    """

    step: StepNumber
    prefill_tokens: int = 0
    prefill_context: int = 0
    decode_sequences: int = 0
    decode_context: int = 0
    elapsed_seconds: float


class LinkCost(Struct, frozen=True, kw_only=True, gc=False):
    """What moving blocks over a link takes, as measured and as its limit leaves it: `fixed_seconds` and, for
    n bytes, n over `bytes_per_second`."""

    source: Tier
    target: Tier
    bytes_per_second: float
    fixed_seconds: float = 0.0


def blocks_for_tokens(token_count: int, block_tokens: int) -> int:
    """Blocks that hold `token_count` tokens, the last one perhaps part-filled."""
    return -(-token_count // block_tokens)


# Of a domain's number, the tenant's: also of many at once, as arrays.
TENANT_MASK = 0xFFFF_FFFF


def domain_id(namespace: NamespaceId, tenant: TenantId) -> DomainId:
    """A block is found within its domain only."""
    return DomainId(namespace << 32 | tenant)


def domain_parts(domain: DomainId) -> tuple[NamespaceId, TenantId]:
    return NamespaceId(domain >> 32), TenantId(domain & TENANT_MASK)
