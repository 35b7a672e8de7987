"""What happens, as the contract's events: for those who watch, and for engines."""

from collections.abc import Sequence

from kvstore.core.notices import (
    BlocksRemoved,
    BlocksStored,
    EngineGone,
    Happening,
    PressureChanged,
    SequenceMoved,
)
from kvstore.core.types import EngineId, Pressure, Tier
from kvstore.server.encode_results import SEQUENCE_STATES
from kvstore.server.fields import engine_name
from kvstore.tiers.names import NameKind, Names
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["PRESSURES", "TIERS", "concerns", "encode_batch", "encode_event"]

TIERS = {Tier.GPU: pb.TIER_GPU, Tier.CPU: pb.TIER_CPU, Tier.DISK: pb.TIER_DISK}
PRESSURES = {
    Pressure.LOW: pb.PRESSURE_LOW,
    Pressure.HIGH: pb.PRESSURE_HIGH,
    Pressure.FULL: pb.PRESSURE_FULL,
}


def concerns(happening: Happening, engine: EngineId) -> bool:
    """What one is told who watches this engine."""
    match happening:
        case SequenceMoved() | EngineGone():
            return happening.engine == engine
        case PressureChanged():
            return True
    return False


def encode_batch(
    revision: int, happened: Sequence[Happening], store_epoch: int, names: Names
) -> pb.EventBatch:
    events = [encode_event(each, names) for each in happened]
    return pb.EventBatch(revision=revision, events=events, store_epoch=store_epoch)


def encode_event(happening: Happening, names: Names | None = None) -> pb.Event:
    """`names`: of whose blocks are told of; engines are told of none."""
    event = pb.Event(revision=happening.revision)
    match happening:
        case SequenceMoved():
            moved = event.sequence_moved
            moved.engine = engine_name(happening.engine)
            moved.sequence = happening.sequence
            moved.state = SEQUENCE_STATES[happening.state]
            moved.block_table.extend(happening.block_table)
            moved.valid_tokens = happening.valid_tokens
        case PressureChanged():
            event.pressure_changed.tier = TIERS[happening.tier]
            event.pressure_changed.pressure = PRESSURES[happening.pressure]
        case EngineGone():
            event.engine_expired.engine = engine_name(happening.engine)
        case BlocksStored():
            _fill_blocks(event.blocks_stored, happening, names)
        case BlocksRemoved():
            _fill_blocks(event.blocks_removed, happening, names)
    return event


def _fill_blocks(
    message: pb.BlocksStored | pb.BlocksRemoved, blocks: BlocksStored | BlocksRemoved, names: Names | None
) -> None:
    message.tier = TIERS[blocks.tier]
    message.block_keys.extend(blocks.keys)
    if names is not None:
        message.fingerprint = names.name_of(NameKind.NAMESPACE, blocks.namespace)
        message.tenant = names.name_of(NameKind.TENANT, blocks.tenant).decode(errors="replace")
