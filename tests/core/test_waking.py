"""Who waits for GPU frames is woken when there may be some, by whatever event; not by what moves below."""

from collections import Counter
from collections.abc import Callable

import pytest

from kvstore.core.effects import Effects
from kvstore.core.events import Event
from kvstore.core.store import Store
from kvstore.core.types import CPU, DISK, GPU, LATER
from tests.core.caller import Caller
from tests.core.fuzz import Fuzz
from tests.core.world import World, make_store, text


def frames_to_be_had(store: Store) -> int:
    """Free ones, and those of blocks that may go at once for somebody who needs them."""
    memory = store.memory
    awaited = memory.blocks.queued[GPU] & memory.blocks.to_disk & (not memory.room.copies_stalled)
    victims = memory.room.victims(GPU, memory.blocks.capacity, spared=lambda rows: awaited[rows])
    return memory.pools[GPU].free_count + victims.size


def watched(
    store: Store, handle: Callable[[Event], Effects], made: Counter[str]
) -> Callable[[Event], Effects]:
    """Handles events, and checks of each that has left more frames to be had that all who wait are woken."""
    frames = frames_to_be_had(store)

    def handle_and_check(event: Event) -> Effects:
        nonlocal frames
        effects, before = handle(event), frames
        frames = frames_to_be_had(store)
        if store.admission.waiting and frames > before:
            made[type(event).__name__] += 1
            assert store.admission.engines_waiting().keys() <= set(effects.wake), event
        return effects

    return handle_and_check


def test_whoever_waits_is_woken_when_there_is_more_to_be_had() -> None:
    made: Counter[str] = Counter()
    for seed in range(12):
        fuzz = Fuzz(seed, gpu_frames=12, cpu_frames=10, disk_frames=20 if seed % 2 else 0)
        store = fuzz.world.store
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "handle", watched(store, store.handle, made))
            for _ in range(150):
                fuzz.turn()
    assert made["TransferEnded"] > 10
    assert made["Step"] > 10


def test_the_end_of_a_write_makes_no_room_on_the_gpu() -> None:
    world = World(make_store(gpu_frames=8, cpu_frames=8, disk_frames=8))
    caller, other = Caller(world), Caller(world, 2)
    caller.cache(text(1, 16), session="chat")
    (copy,) = world.moving(GPU, CPU)
    world.end(copy)
    other.allocate(2, 8 * 4)
    assert caller.allocate(3, 4).outcome is LATER
    (write,) = world.moving(CPU, DISK)
    assert world.end(write).wake == ()
