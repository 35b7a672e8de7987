"""With nobody else there, one engine can have every frame: all that is cached can be given up. Below the GPU
it takes a sequence of each tenant to fill that tenant's share."""

import math
import random

from kvstore.core.calls import Detach
from kvstore.core.types import Retention, SequenceState, SwapMode, Tier
from kvstore.policy.eviction import Lru
from kvstore.sim.engine import SimEngine
from kvstore.sim.habits import RETAINED_SECONDS_MAX
from kvstore.sim.ops import free
from kvstore.sim.texts import BLOCK_TOKENS, Texts, keys_of
from kvstore.sim.verbs import begin, commit_full, preempt
from kvstore.sim.world import World
from kvstore.sim.wrong import expect

__all__ = ["take_all"]

# Longer than the store ever leaves what is to be written alone.
PAUSE_SECONDS = 70.0
LOOK_SECONDS = 0.1
QUIET_ROUNDS = 2


def take_all(world: World, texts: Texts, number: int) -> None:
    """No transfer fails meanwhile."""
    config = world.store.config
    # Copies that waited as long as somebody computed are not to begin beside what is asked for now.
    _move_until_quiet(world, LOOK_SECONDS)
    engine = SimEngine(world, number)
    _Taker(engine, texts).take(config.gpu_frames)
    engine.take_step([free(id, retention=Retention.DISCARD) for id in engine.lines])
    room = config.cpu_frames - config.cpu_frames_reserved
    share = min(room, _share_of_a(world, Tier.CPU))
    pieces = [("a", blocks) for blocks in _in_pieces(share, config.gpu_frames)]
    pieces += [("b", blocks) for blocks in _in_pieces(room - share, config.gpu_frames)]
    for tenant, blocks in pieces:
        line = _Taker(engine, texts).take(blocks, tenant)
        engine.take_step([preempt(engine.lines[line], SwapMode.KEEP)])
        engine.run_work(engine.step)
        engine.keep_alive()
        world.drain()
        engine.keep_alive()
        state = engine.lines[line].state
        expect(
            state is SequenceState.SWAPPED,
            f"the CPU tier can't be emptied: {engine.label(line)} is {state.name}",
        )
    engine.take_step([free(id, retention=Retention.DISCARD) for id in engine.lines])
    if config.disk_frames:
        _outlast(world, engine)
        _take_disk(world, engine, texts, min(room, config.gpu_frames))
    engine.run_work(engine.step)
    engine.stop()
    world.handle(Detach(time=world.time, engine=engine.id))
    world.drain()


def _outlast(world: World, engine: SimEngine) -> None:
    """What is retained would be there still, behind all that is newer: its time runs out."""
    for _ in range(2 * math.ceil(RETAINED_SECONDS_MAX) + 2):
        world.tick(0.5)
        engine.keep_alive()


def _take_disk(world: World, engine: SimEngine, texts: Texts, most: int) -> None:
    """Sessions take the whole disk: nothing older stays. Some more than fill it, since a block on disk
    is held by one that hangs on it and is in the CPU tier still."""
    mine: set[bytes] = set()
    config = world.store.config
    pieces = _in_pieces(config.disk_frames + 2 * config.cpu_frames, most)
    for tenant, blocks in [(tenant, blocks) for tenant in "ab" for blocks in pieces]:
        line = engine.lines[_Taker(engine, texts).take(blocks, tenant)]
        mine.update(keys_of(line.tokens))
        engine.take_step(commit_full(line, 0))
        engine.take_step([free(line.id, retention=Retention.SESSION)])
        engine.run_work(engine.step)
        engine.keep_alive()
        # What a full queue did not take, or could not be written, is asked for again as time passes.
        _move_until_quiet(world, PAUSE_SECONDS)
    used = world.store.usage().tiers[Tier.DISK]
    expect(not used.frames_free, f"{used.frames_free} frames of a full disk are free")
    old = {key for _, _, key in world.shadow.disk} - mine
    if type(world.store.memory.eviction) is not Lru:
        # What it holds to be of more worth may stay.
        return
    expect(not old, f"the disk can't be emptied: {len(old)} older blocks stay on it")


def _move_until_quiet(world: World, seconds: float) -> None:
    """What the store does by itself as time passes. `seconds`: between two looks of it."""
    moved, quiet = list[int](), 0
    world.drain()
    while quiet < QUIET_ROUNDS:
        # The service slept meanwhile: no lease has run out.
        world.tick(seconds)
        world.drain()
        before, moved = moved, [tier.blocks_moved_in for tier in world.store.usage().tiers]
        quiet = quiet + 1 if moved == before else 0


def _in_pieces(count: int, most: int) -> list[int]:
    return [min(most, count - start) for start in range(0, count, most)] if most else []


class _Taker:
    """Sequences of new tokens that fill whole blocks."""

    def __init__(self, engine: SimEngine, texts: Texts) -> None:
        self._engine, self._texts, self._random = engine, texts, random.Random(0)

    def take(self, blocks: int, tenant: str = "a") -> int:
        engine, tokens = self._engine, list[int]()
        while len(tokens) < blocks * BLOCK_TOKENS:
            tokens += self._texts.new_tokens(self._random, BLOCK_TOKENS)
        engine.run_work(engine.step)
        operation = begin(engine, tokens[: blocks * BLOCK_TOKENS], tenant)
        engine.take_step([operation])
        engine.run_work(engine.step)
        line = engine.lines.get(operation.sequence)
        served = line is not None and line.state is SequenceState.RESIDENT
        expect(served, f"an engine by itself can't have {blocks} GPU frames")
        return operation.sequence


def _share_of_a(world: World, tier: Tier) -> int:
    """Frames of the tier that tenant a can have whatever others do."""
    [a] = [each for each in world.store.usage().tenants if each.tenant == "a"]
    return sum(each.frames_guaranteed for each in a.frames if each.tier is tier)
