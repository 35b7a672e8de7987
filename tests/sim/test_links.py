"""When transfers end, in which order, and how badly."""

import random
from dataclasses import replace

from kvstore.core.effects import DiskDelete
from kvstore.core.events import TransferEnded
from kvstore.core.types import Tier
from kvstore.sim.clock import Clock
from kvstore.sim.config import LinkSpeed, SimConfig, draw_config
from kvstore.sim.links import SLOW_FACTOR, TimedLinks
from kvstore.sim.records import Handled
from kvstore.sim.texts import keys_of, stored_keys, text
from kvstore.sim.world import World
from tests.core.caller import Caller
from tests.core.world import make_store

MIB = 1 << 20
SPEED = LinkSpeed(bandwidth=100 * MIB, latency=0.01)
TOKENS = text(1, 16)
KEYS = keys_of(TOKENS)
QUIET = {"fail_share": 0.0, "slow_share": 0.0, "reorder_share": 0.0, "late_share": 0.0, "ranks": 2}


def config_of(**given: object) -> SimConfig:
    config = draw_config(1, **QUIET | given)
    return replace(config, links=dict.fromkeys(config.links, SPEED), block_bytes=MIB)


def world_of(config: SimConfig) -> tuple[World, TimedLinks, Clock]:
    clock = Clock()
    links = TimedLinks(config, clock)
    store = make_store(gpu_frames=16, cpu_frames=16, disk_frames=16, transfer_blocks_max=2)
    return World(store, rank_count=config.ranks, carrier=links), links, clock


def cached(config: SimConfig) -> tuple[Caller, TimedLinks, Clock]:
    """A session of four blocks has ended: two copies of two blocks are under way."""
    world, links, clock = world_of(config)
    caller = Caller(world)
    caller.cache(TOKENS, session="s")
    assert len(world.under_way) == 2
    return caller, links, clock


def test_a_transfer_takes_its_latency_and_its_bytes() -> None:
    caller, _, clock = cached(config_of())
    begin = caller.world.time
    # Two blocks: 30 ms, less or more by the jitter.
    clock.run_until(caller.world, begin + 0.7 * 0.03 - 0.001)
    assert len(caller.world.under_way) == 2
    clock.run_until(caller.world, begin + 1.5 * 0.03)
    assert [moving.transfer.id for moving in caller.world.moving(Tier.GPU, Tier.CPU)] == [2]
    clock.run_until(caller.world, begin + 1)
    assert len(caller.world.shadow.disk) == 4


def test_a_slow_one_takes_longer() -> None:
    caller, _, clock = cached(config_of(slow_share=1.0))
    clock.run_until(caller.world, caller.world.time + 0.7 * 0.03 * SLOW_FACTOR - 0.001)
    assert len(caller.world.under_way) == 2


def test_one_overtakes_another() -> None:
    orders = set()
    for seed in range(20):
        caller, _, clock = cached(replace(config_of(reorder_share=1.0), seed=seed))
        clock.run_until(caller.world, caller.world.time + 1)
        events = [record.event for record in caller.world.log if isinstance(record, Handled)]
        ended = [event.transfer for event in events if isinstance(event, TransferEnded)]
        orders.add(tuple(id for id in ended if id <= 2))
    assert orders == {(1, 2), (2, 1)}


def test_a_failure_leaves_the_source_and_is_told() -> None:
    caller, _, clock = cached(config_of(fail_share=1.0))
    clock.run_until(caller.world, caller.world.time + 10)
    assert not caller.world.under_way
    assert caller.world.store.usage().tiers[Tier.CPU].blocks_failed > 0
    caller.read(caller.allocate(5, 17, KEYS).block_table[:4], TOKENS)


def test_a_full_disk_takes_nothing() -> None:
    caller, links, clock = cached(config_of())
    links.disk_full_until = caller.world.time + 100
    clock.run_until(caller.world, caller.world.time + 10)
    assert not len(caller.world.shadow.disk)
    assert caller.world.store.usage().tiers[Tier.DISK].blocks_failed > 0


def test_a_flipped_bit_is_found_by_the_read_and_the_block_is_gone() -> None:
    world, _, clock = world_of(config_of())
    world.find(TOKENS)
    world.shadow.disk.flip(2)
    caller = Caller(world)
    caller.allocate(1, 17, KEYS)
    clock.run_until(world, world.time + 10)
    caller.step()
    assert caller.sequence(1).filled_tokens == 8
    assert KEYS[2] not in {key for _, _, key in world.shadow.disk}
    caller.read(caller.table(1), TOKENS[:8])


def test_a_crash_keeps_the_head_of_what_was_written_and_loses_deletes() -> None:
    counts = set()
    for seed in range(30):
        caller, links, clock = cached(config_of())
        world = caller.world
        while not world.moving(Tier.CPU, Tier.DISK):
            clock.run_until(world, world.time + 0.001)
        links.crash(world, random.Random(seed))
        world.restart(make_store(gpu_frames=16, cpu_frames=16, disk_frames=16))
        found = [key for _, _, key in world.shadow.disk]
        assert found == list(KEYS[: len(found)])
        assert world.store.usage().tiers[Tier.DISK].frames_cached == len(found)
        counts.add(len(found))
    assert counts == {0, 1, 2}


def test_a_delete_reaches_the_disk_before_a_write_that_comes_after_it() -> None:
    (first, *_) = stored_keys(TOKENS)
    for seed in range(20):
        caller, links, clock = cached(replace(config_of(), seed=seed))
        world = caller.world
        links.tell_disk(world, DiskDelete(keys=(first,)))
        clock.run_until(world, world.time + 10)
        assert first.key in {key for _, _, key in world.shadow.disk}
