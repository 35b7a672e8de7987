"""A world with turns of chats in all tiers, and Forget asked of it."""

from typing import Any

from kvstore.core.answers import ForgetAnswer
from kvstore.core.calls import Forget, ForgetOn
from tests.core.caller import Caller
from tests.core.ops import free
from tests.core.world import World, keys_of, make_store

__all__ = ["cached", "forget", "go_on", "make_world", "restart", "turn"]


def make_world(disk_frames: int = 32, lot: int = 100, cpu_frames: int = 16, gpu_frames: int = 16) -> World:
    store = make_store(
        gpu_frames=gpu_frames,
        cpu_frames=cpu_frames,
        disk_frames=disk_frames,
        forget_lot_blocks=lot,
        transfers_per_link_max=1,
    )
    return World(store)


def forget(world: World, **what: Any) -> ForgetAnswer:
    answer = world.handle(Forget(time=world.time, **what)).answer
    assert isinstance(answer, ForgetAnswer)
    return answer


def go_on(world: World, answer: ForgetAnswer) -> ForgetAnswer:
    after = world.handle(ForgetOn(time=world.time, forget=answer.forget)).answer
    assert isinstance(after, ForgetAnswer)
    return after


def turn(caller: Caller, sequence: int, tokens: tuple[int, ...], session: str = "chat", **more: Any) -> None:
    """Written to disk when the world is drained."""
    caller.begin(sequence, tokens, session=session, **more)
    caller.step(free(sequence))


def restart(world: World, number: int = 9, namespace: int = 1) -> Caller:
    world.restart(make_store(gpu_frames=16, cpu_frames=16, disk_frames=32, transfers_per_link_max=1))
    return Caller(world, number, namespace=namespace)


def cached(caller: Caller, tokens: tuple[int, ...], tenant: str = "") -> int:
    return caller.lookup(keys_of(tokens), tenant).blocks_cached
