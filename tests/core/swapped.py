"""Sequences that are to be swapped, and the names of their states."""

from kvstore.core.types import SequenceState
from tests.core.caller import Caller
from tests.core.world import World, make_store, text

__all__ = ["DROPPED", "IN", "OUT", "RESIDENT", "SWAPPED", "caller_of", "written"]

RESIDENT, OUT = SequenceState.RESIDENT, SequenceState.SWAPPING_OUT
SWAPPED, IN, DROPPED = SequenceState.SWAPPED, SequenceState.SWAPPING_IN, SequenceState.DROPPED


def caller_of(**sizes: int) -> Caller:
    return Caller(World(make_store(**({"gpu_frames": 8, "cpu_frames": 8} | sizes))))


def written(caller: Caller, sequence: int, token_count: int) -> tuple[int, ...]:
    """A sequence of private, part-filled content."""
    tokens = text(sequence, token_count)
    caller.allocate(sequence, token_count)
    caller.write(caller.table(sequence), tokens)
    return tokens
