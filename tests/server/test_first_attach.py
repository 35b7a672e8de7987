"""The first Attach, without gRPC: one pool for all who come at once, layouts refused, want of memory."""

import asyncio
import os
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from kvstore.core.answers import LookupAnswer, StepAnswer
from kvstore.core.calls import Detach, Lookup
from kvstore.core.errors import EngineExpired, FieldInvalid, LayoutMismatch, PoolUnavailable
from kvstore.core.types import EngineId, Tier
from kvstore.server import pools
from kvstore.server.clock import now
from kvstore.server.driver import Driver
from kvstore.server.layout import Layout
from kvstore.tiers.pool import HostPool
from tests.server.driving import (
    FRAMES,
    LAYOUT,
    Stopped,
    attach,
    commit_turn,
    config_for,
    keep_alive,
    key,
    run,
    step,
)


def test_a_layout_that_is_refused_wipes_nothing(tmp_path: Path) -> None:
    """Its fingerprint is one that is known with another size, though of the folder's geometry."""
    config = replace(config_for(tmp_path, disk_bytes=16 << 20), wipe_incompatible=True)
    wrong = replace(LAYOUT, block_bytes=LAYOUT.block_bytes - 16)

    async def store(driver: Driver, _: Stopped) -> None:
        attached = await attach(driver)
        commit_turn(driver, attached.answer.engine, 2)
        await driver.end_transfers(10.0)

    async def refuse(driver: Driver, _: Stopped) -> None:
        with pytest.raises(LayoutMismatch, match="block_bytes"):
            await attach(driver, wrong)
        engine = (await attach(driver)).answer.engine
        lookup = Lookup(time=now(), engine=engine, block_keys=(key(0), key(1)))
        assert driver.ask(lookup, LookupAnswer).blocks_by_tier == (0, 0, 2)

    run(store, config)
    run(refuse, config)


def test_before_the_first_attach_there_is_no_store(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        assert [(tier.tier, tier.frames_total) for tier in driver.reports.usage().tiers] == [
            (Tier.GPU, 0),
            (Tier.CPU, 0),
        ]
        engine = EngineId(str(uuid.uuid4()))
        with pytest.raises(EngineExpired):
            driver.ask(step(engine, 1), StepAnswer)
        with pytest.raises(EngineExpired):
            await driver.keep_alive(keep_alive(engine), 1.0)
        driver.detach(Detach(time=now(), engine=engine))

    run(scenario, config_for(tmp_path))


def test_all_who_attach_at_once_share_one_pool(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        attached = await asyncio.gather(*(attach(driver) for _ in range(5)))
        assert len({id(each.pools.gpu) for each in attached}) == 1
        assert len({each.answer.engine for each in attached}) == 5
        [gpu, cpu] = driver.reports.usage().tiers
        assert (gpu.frames_total, cpu.frames_total) == (FRAMES, 64)

    run(scenario, config_for(tmp_path))


def test_the_pools_are_made_though_the_first_caller_has_gone(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        impatient = asyncio.create_task(attach(driver))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
        assert (await attach(driver)).answer.created
        assert len(driver.reports.usage().engines) == 1

    run(scenario, config_for(tmp_path))


def test_later_layouts_must_have_the_same_sizes(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        await attach(driver)
        other = Layout(block_tokens=4, block_bytes=8192, ranks=1, fingerprint=b"g" * 32)
        with pytest.raises(LayoutMismatch) as refused:
            await attach(driver, other)
        assert "4096 bytes" in refused.value.message
        assert "8192 bytes" in refused.value.value
        # Another model of the same sizes is only another namespace.
        await attach(driver, Layout(block_tokens=4, block_bytes=4096, ranks=1, fingerprint=b"g" * 32))

    run(scenario, config_for(tmp_path))


def test_a_layout_of_which_nothing_fits_is_refused_and_makes_no_pools(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        huge = Layout(block_tokens=4, block_bytes=FRAMES * 4096 + 1, ranks=1, fingerprint=b"f" * 32)
        with pytest.raises(FieldInvalid) as refused:
            await attach(driver, huge)
        assert refused.value.field == "layout.block_bytes"
        assert "--gpu" in refused.value.remedy
        await attach(driver)

    run(scenario, config_for(tmp_path))


def test_want_of_memory_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "PAUSE_SECONDS", 0.01)
    tries = refuse_memory(monkeypatch, 3)

    async def scenario(driver: Driver, stopped: Stopped) -> None:
        assert (await attach(driver)).answer.created
        assert len(tries) == 4

    run(scenario, config_for(tmp_path))


def test_want_of_memory_that_lasts_names_the_old_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(pools, "TRY_SECONDS", 0.05)
    refuse_memory(monkeypatch, 10**6)
    before = len(os.listdir("/proc/self/fd"))

    async def scenario(driver: Driver, stopped: Stopped) -> None:
        with pytest.raises(PoolUnavailable) as refused:
            await attach(driver)
        assert "engines of an earlier service" in refused.value.remedy

    run(scenario, config_for(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before


def refuse_memory(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """The CPU pool, which is made second, is refused so often; returns the tries."""
    tries: list[str] = []
    make = HostPool

    def make_or_refuse(name: str, *sizes: int, option: str) -> HostPool:
        if name == "cpu":
            tries.append(name)
            if len(tries) <= times:
                raise PoolUnavailable("none left", field=option, remedy="lower it")
        return make(name, *sizes, option=option)

    monkeypatch.setattr(pools, "HostPool", make_or_refuse)
    return tries
