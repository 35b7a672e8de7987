"""Stores whose links are looked at: what is under way on them, what waits, and what was shed."""

from kvstore.core.types import SequenceState, Tier, Urgency
from tests.core.caller import Caller
from tests.core.ops import swap_out
from tests.core.world import World, make_store, text

__all__ = ["COPY", "LOAD", "READ", "WRITE", "caller_of", "shed", "swapped", "urgencies", "waiting"]

LOAD, READ = (Tier.CPU, Tier.GPU), (Tier.DISK, Tier.CPU)
COPY, WRITE = (Tier.GPU, Tier.CPU), (Tier.CPU, Tier.DISK)


def caller_of(**sizes: float) -> Caller:
    return Caller(World(make_store(**({"gpu_frames": 16, "cpu_frames": 16, "disk_frames": 32} | sizes))))  # type: ignore[arg-type]


def urgencies(caller: Caller, link: tuple[Tier, Tier]) -> list[Urgency]:
    return [moving.transfer.urgency for moving in caller.world.moving(*link)]


def shed(caller: Caller) -> tuple[int, ...]:
    return tuple(tier.blocks_shed for tier in caller.world.store.usage().tiers)


def waiting(caller: Caller, link: tuple[Tier, Tier], urgency: Urgency) -> int:
    lanes = caller.world.store.usage().lanes
    (lane,) = [each for each in lanes if ((each.source, each.target), each.urgency) == (link, urgency)]
    return lane.blocks_waiting


def swapped(caller: Caller, count: int, blocks: int = 1) -> list[int]:
    """Sequences that lie in the CPU tier, to be loaded."""
    numbers = list(range(100, 100 + count))
    for number in numbers:
        caller.begin(number, text(number, 4 * blocks))
        caller.step(swap_out(number, 4 * blocks))
        caller.step()
    caller.world.drain()
    assert all(caller.state(number) is SequenceState.SWAPPED for number in numbers)
    return numbers
