"""Retain and Prefetch asked of a world, and chats that lie on its disk."""

from typing import Any

from kvstore.core.answers import PrefetchAnswer, RetainAnswer
from kvstore.core.calls import Prefetch, Retain
from kvstore.core.types import Tier
from tests.core.caller import Caller
from tests.core.world import World, keys_of, make_store, text

__all__ = ["cached", "chat_on_disk", "fill", "make_world", "prefetch", "retain"]


def make_world(gpu_frames: int = 16, cpu_frames: int = 0, disk_frames: int = 0, retained: int = 8) -> World:
    return World(
        make_store(
            gpu_frames=gpu_frames,
            cpu_frames=cpu_frames,
            disk_frames=disk_frames,
            retained_blocks_max=retained,
        )
    )


def retain(caller: Caller, tokens: tuple[int, ...] = (), *, ttl: float = 60.0, **more: Any) -> int:
    world = caller.world
    event = Retain(time=world.time, engine=caller.id, block_keys=keys_of(tokens), ttl_seconds=ttl, **more)
    answer = world.handle(event).answer
    assert isinstance(answer, RetainAnswer)
    return answer.blocks_retained


def prefetch(caller: Caller, tokens: tuple[int, ...] = (), target: Tier = Tier.CPU, **more: Any) -> int:
    world = caller.world
    event = Prefetch(time=world.time, engine=caller.id, block_keys=keys_of(tokens), target=target, **more)
    answer = world.handle(event).answer
    assert isinstance(answer, PrefetchAnswer)
    return answer.blocks_started


def cached(caller: Caller, number: int, tenant: str = "") -> int:
    return caller.lookup(keys_of(text(number, 16)), tenant).blocks_cached


def fill(caller: Caller, first: int, count: int) -> None:
    """Other chats, of four blocks each."""
    for number in range(first, first + count):
        caller.cache(text(number, 16), number)


def chat_on_disk(gpu_frames: int = 16, cpu_frames: int = 16) -> Caller:
    """After a restart: a session of four blocks, which lie on disk alone."""
    world = make_world(gpu_frames=gpu_frames, cpu_frames=cpu_frames, disk_frames=32)
    caller = Caller(world)
    caller.cache(text(1, 16), session="chat")
    world.drain()
    world.restart(make_store(gpu_frames=gpu_frames, cpu_frames=cpu_frames, disk_frames=32))
    return Caller(world, 2)
