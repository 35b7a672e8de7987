"""What those are told who watch: applied in order it is the index by tier, and nothing is told to nobody."""

import random

import pytest

from kvstore.core.calls import KeepAlive, Watch
from kvstore.core.effects import Effects
from kvstore.core.events import BlocksFound
from kvstore.core.invariants import found_by_tier
from kvstore.core.notices import (
    BlocksRemoved,
    BlocksStored,
    EngineGone,
    Happening,
    PressureChanged,
    SequenceMoved,
)
from kvstore.core.types import BlockKey, Retention, SequenceState, StepNumber, Tier
from kvstore.core.watching import KEYS_MAX
from kvstore.sim.attempts import Failure, Passed, attempt
from kvstore.sim.config import draw_config
from kvstore.sim.mirror import Mirror
from kvstore.sim.records import Handled
from kvstore.sim.schedule import draw_schedule
from kvstore.sim.simulation import START
from kvstore.sim.wrong import Wrong
from tests.core.caller import Caller
from tests.core.fuzz import Fuzz
from tests.core.ops import allocate, commit, free
from tests.core.world import World, keys_of, make_store, stored_keys, text

TOKENS = text(1, 16)
KEYS = keys_of(TOKENS)


def watched(**sizes: int) -> World:
    sizes = {"gpu_frames": 8, "cpu_frames": 8, "disk_frames": 16} | sizes
    return World(make_store(**sizes), watched=True)


def blocks_of(effects: Effects) -> list[tuple[str, Tier, tuple[BlockKey, ...]]]:
    return [
        (type(each).__name__, each.tier, each.keys)
        for each in effects.happened
        if isinstance(each, BlocksStored | BlocksRemoved)
    ]


def mirror_of(world: World) -> Mirror:
    assert world.mirror is not None
    return world.mirror


# ------------------------------------------------------------------------- one by one


def test_a_commit_is_told_when_it_can_be_found_and_not_before() -> None:
    caller = Caller(watched())
    caller.allocate(1, 16)
    caller.step(commit(1, KEYS), completed=0)
    assert not blocks_of(caller.effects)
    caller.step(completed=1)
    assert blocks_of(caller.effects) == [("BlocksStored", Tier.GPU, KEYS)]


def test_each_tier_is_told_when_the_copy_has_come_and_not_when_it_begins() -> None:
    caller = Caller(watched())
    caller.begin(1, TOKENS, session="s")
    assert blocks_of(caller.effects) == [("BlocksStored", Tier.GPU, KEYS)]
    caller.step(free(1))
    (copy,) = caller.world.under_way
    assert blocks_of(caller.world.end(copy)) == [("BlocksStored", Tier.CPU, KEYS)]
    (write,) = caller.world.under_way
    assert blocks_of(caller.world.end(write)) == [("BlocksStored", Tier.DISK, KEYS)]


def test_a_copy_that_failed_is_not_told() -> None:
    caller = Caller(watched())
    caller.cache(TOKENS, session="s")
    (copy,) = caller.world.under_way
    told = blocks_of(caller.world.end(copy, failed=[2]))
    assert told == [("BlocksStored", Tier.CPU, (*KEYS[:2], KEYS[3]))]


def test_an_eviction_is_told_by_tier() -> None:
    caller = Caller(watched())
    caller.cache(TOKENS)
    caller.world.drain()
    caller.allocate(2, 32)
    assert blocks_of(caller.effects) == [("BlocksRemoved", Tier.GPU, KEYS[::-1])]
    assert {tier for tier, *_ in mirror_of(caller.world).found} == {Tier.CPU}


def test_what_is_discarded_is_told_for_every_tier() -> None:
    caller = Caller(watched())
    caller.begin(1, TOKENS, session="s")
    caller.step()
    caller.step(free(1, retention=Retention.DISCARD))
    caller.step()
    caller.world.drain()
    assert not mirror_of(caller.world).found


def test_what_is_found_on_disk_is_told_with_its_domain() -> None:
    world = watched()
    found = stored_keys(TOKENS, tenant=2, namespace=3)
    told = world.handle(BlocksFound(time=world.time, blocks=tuple(found))).happened
    (stored,) = told
    assert isinstance(stored, BlocksStored)
    assert (stored.tier, stored.namespace, stored.tenant, stored.keys) == (Tier.DISK, 3, 2, KEYS)


def test_many_blocks_are_told_in_many_events() -> None:
    world = watched(disk_frames=3 * KEYS_MAX)
    tokens = text(1, 4 * (2 * KEYS_MAX + 1))
    told = world.handle(BlocksFound(time=world.time, blocks=tuple(stored_keys(tokens)))).happened
    assert [len(each.keys) for each in told if isinstance(each, BlocksStored)] == [KEYS_MAX, KEYS_MAX, 1]


def test_a_move_is_told_as_it_was_and_to_those_who_watch_at_once() -> None:
    """Its engine hears of the last one only, as things are then; revisions are the same for both."""
    caller = Caller(watched())
    caller.allocate(1, 10)
    caller.write(caller.table(1), text(1, 10))
    caller.swap_out(1, 10)
    (ended,) = [caller.world.end(moving) for moving in list(caller.world.under_way)]
    (move,) = ended.happened
    assert isinstance(move, SequenceMoved)
    assert (move.engine, move.sequence, move.state) == (caller.id, 1, SequenceState.SWAPPED)
    assert caller.keep_alive().notices == (move,)


def test_pressure_is_one_event_for_all_engines() -> None:
    caller = Caller(watched())
    other = Caller(caller.world, 2)
    answer = caller.step(allocate(1, 32))
    (pressure,) = caller.effects.happened
    assert isinstance(pressure, PressureChanged)
    assert answer.notices == other.keep_alive().notices == (pressure,)


def test_the_end_of_a_lease_and_of_the_last_tether_are_told_and_a_detach_is_not() -> None:
    world = watched()
    silent, dead, orderly = (Caller(world, number) for number in (1, 2, 3))
    assert not orderly.detach().happened
    assert [type(each) for each in dead.close_tethers().happened] == [EngineGone]
    for _ in range(13):
        world.tick(0.9)
    gone = [each.engine for each in world_log(world) if isinstance(each, EngineGone)]
    assert gone == [dead.id, silent.id]
    assert not silent.close_tethers().happened, "it is gone already"


def world_log(world: World) -> list[Happening]:
    handled = [record.effects for record in world.log if isinstance(record, Handled)]
    return [each for effects in handled if effects is not None for each in effects.happened]


# ---------------------------------------------------------------------------- on and off


def test_nobody_watches_nobody_is_told() -> None:
    caller = Caller(World(make_store(gpu_frames=8)))
    caller.cache(TOKENS)
    caller.allocate(2, 32)
    assert not world_log(caller.world)


def test_a_watcher_who_comes_later_is_told_from_then_on() -> None:
    caller = Caller(World(make_store(gpu_frames=8)))
    caller.cache(TOKENS)
    world = caller.world
    assert not world.handle(Watch(time=world.time, on=True)).happened
    caller.allocate(2, 32)
    assert ("BlocksRemoved", Tier.GPU, KEYS[::-1]) in blocks_of(caller.effects)
    world.handle(Watch(time=world.time, on=False))
    caller.step(free(2))
    caller.cache(TOKENS, 3)
    assert not caller.effects.happened


def test_a_revision_that_was_seen_before_a_time_without_watchers_is_not_the_one_before_the_next() -> None:
    """Blocks that came and went unseen were not counted: who had the last revision must find a gap."""
    caller = Caller(World(make_store(gpu_frames=8)))
    world = caller.world
    world.handle(Watch(time=world.time, on=True))
    caller.cache(TOKENS)
    seen = world.store.revision
    world.handle(Watch(time=world.time, on=False))
    caller.cache(text(2, 16), 2)
    assert world.store.revision == seen
    world.handle(Watch(time=world.time, on=True))
    caller.cache(text(3, 8), 3)
    revisions = [each.revision for each in world_log(world) if each.revision > seen]
    assert min(revisions) == seen + 2


def test_to_watch_once_more_changes_nothing() -> None:
    caller = Caller(watched())
    caller.cache(TOKENS)
    before = caller.world.store.revision
    caller.world.handle(Watch(time=caller.world.time, on=True))
    assert caller.world.store.revision == before


def test_a_refused_event_tells_nothing_later() -> None:
    caller = Caller(watched())
    caller.cache(TOKENS)
    with pytest.raises(Exception, match="completed_step"):
        caller.world.store.handle(
            KeepAlive(time=caller.world.time, engine=caller.id, completed_step=StepNumber(99))
        )
    assert not caller.keep_alive().notices
    assert not caller.effects.happened


# ------------------------------------------------------------------------------- property


@pytest.mark.parametrize("seed", range(4))
def test_what_is_told_from_the_beginning_is_the_index_after_every_event(seed: int) -> None:
    """In worlds with failing links, lost blocks, deaths, restarts and drains."""
    config = draw_config(seed, watched=True, restart_share=0.01, drain_share=0.02, flip_share=0.05)
    result = attempt(config, draw_schedule(config, 120, START))
    if isinstance(result, Failure):
        raise result.error
    assert isinstance(result, Passed)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_told_between_on_and_off_is_what_has_changed_meanwhile(seed: int) -> None:
    fuzz = Fuzz(seed, cpu_frames=12, disk_frames=20)
    world, rng = fuzz.world, random.Random(seed)
    world.mirror = None
    for _ in range(8):
        for _ in range(rng.randint(1, 12)):
            fuzz.turn()
        world.handle(Watch(time=world.time, on=True))
        world.mirror = Mirror()
        world.mirror.found, world.mirror.revision = found_by_tier(world.store), world.store.revision
        for _ in range(rng.randint(1, 12)):
            fuzz.turn()
        world.mirror = None
        world.handle(Watch(time=world.time, on=False))


def test_a_mirror_that_misses_an_event_says_so() -> None:
    """What the property rests on."""
    caller = Caller(watched())
    mirror, caller.world.mirror = mirror_of(caller.world), None
    caller.cache(TOKENS)
    with pytest.raises(Wrong, match=r"revision \d+ was not told|is told after"):
        mirror.follow(caller.world.store, caller.effects)
