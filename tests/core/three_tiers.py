"""A text of four blocks in a store of three tiers, and what takes it out of those above the disk."""

from kvstore.core.frames import Purpose, make_room
from kvstore.core.types import Outcome, Retention, Tier
from tests.core.caller import Caller
from tests.core.ops import free
from tests.core.world import World, keys_of, make_store, text

__all__ = ["KEYS", "TOKENS", "caller_of", "disk_only", "fill_gpu"]

TOKENS = text(1, 16)
KEYS = keys_of(TOKENS)


def caller_of(**sizes: int) -> Caller:
    return Caller(World(make_store(**({"gpu_frames": 16, "cpu_frames": 16, "disk_frames": 32} | sizes))))


def fill_gpu(caller: Caller, sequence: int = 900) -> None:
    """Another's work takes the whole GPU tier and goes."""
    pool = caller.world.store.memory.pools[Tier.GPU]
    assert caller.allocate(sequence, pool.frame_count * 4).outcome is Outcome.OK
    caller.step(free(sequence, retention=Retention.DISCARD))
    caller.step()


def disk_only(**sizes: int) -> Caller:
    """TOKENS lie on disk and nowhere else."""
    caller = caller_of(**sizes)
    caller.cache(TOKENS, session="s")
    caller.world.drain()
    fill_gpu(caller)
    memory = caller.world.store.memory
    assert make_room(memory, Tier.CPU, memory.pools[Tier.CPU].frame_count, lambda: Purpose("a test"))
    assert caller.lookup(KEYS).blocks_by_tier == (0, 0, 4)
    return caller
