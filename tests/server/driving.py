"""A driver without gRPC, with its disk, and engines that ask it things."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path

from kvstore.core.answers import StepAnswer
from kvstore.core.calls import KeepAlive, Step
from kvstore.core.operations import Allocate, Commit, Free, Operation
from kvstore.core.types import BlockKey, EngineId, Retention, SequenceId, StepNumber, Tier
from kvstore.server.attaching import Attached
from kvstore.server.clock import now
from kvstore.server.config import ServeConfig
from kvstore.server.decode import AttachCall
from kvstore.server.driver import Driver
from kvstore.server.layout import Layout
from kvstore.tiers.disk import DiskTier

__all__ = [
    "FRAMES",
    "LAYOUT",
    "Stopped",
    "attach",
    "commit_turn",
    "config_for",
    "disk_frames_used",
    "finish_turn",
    "keep_alive",
    "key",
    "run",
    "step",
]

LAYOUT = Layout(block_tokens=4, block_bytes=4096, ranks=1, fingerprint=b"f" * 32)
FRAMES = 16


def config_for(folder: Path, *, disk_bytes: int = 0, lease: float = 10.0) -> ServeConfig:
    return ServeConfig(
        socket=folder / "k.sock",
        gpu_bytes=FRAMES * 4096,
        cpu_bytes=64 * 4096,
        disk_path=folder / "disk" if disk_bytes else None,
        disk_bytes=disk_bytes,
        lease_seconds=lease,
    )


class Stopped:
    """Counts how often the driver asked for the end."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self.event.set()


def run(scenario: Callable[[Driver, Stopped], Coroutine[None, None, None]], config: ServeConfig) -> None:
    async def body() -> None:
        stopped = Stopped()
        disk = None
        if config.disk_path is not None:
            wipe = config.wipe_incompatible
            disk = DiskTier.open(config.disk_path, config.disk_bytes, wipe_incompatible=wipe)
        driver = Driver(config, disk, stopped)
        try:
            async with asyncio.timeout(60):
                await scenario(driver, stopped)
        finally:
            assert await driver.close(5.0)
            if disk is not None:
                disk.close()

    asyncio.run(body())


def attach(driver: Driver, layout: Layout = LAYOUT) -> Coroutine[None, None, Attached]:
    call = AttachCall(request_id=str(uuid.uuid4()), layout=layout, lease_seconds=0.0, build="test")
    return driver.attach(call)


def step(engine: EngineId, number: int, *operations: Operation) -> Step:
    return Step(
        time=now(),
        engine=engine,
        step=StepNumber(number),
        completed_step=StepNumber(number - 1),
        operations=operations,
    )


def keep_alive(engine: EngineId, completed: int = 0) -> KeepAlive:
    return KeepAlive(time=now(), engine=engine, completed_step=StepNumber(completed))


def key(number: int) -> BlockKey:
    """Never 32 zeros, which mean no parent on disk."""
    return BlockKey((number + 1).to_bytes(32, "little"))


def commit_turn(driver: Driver, engine: EngineId, blocks: int) -> None:
    """The finished turn of a session, which goes down to disk by itself."""
    keys = tuple(key(number) for number in range(blocks))
    allocate = Allocate(sequence=SequenceId(1), token_count=4 * blocks, block_keys=keys[:-1], session="chat")
    commit = Commit(sequence=SequenceId(1), first_block=0, block_keys=keys)
    free = Free(sequences=(SequenceId(1),), retention=Retention.SESSION)
    for number, operations in enumerate([(allocate,), (commit, free), ()], start=1):
        driver.ask(step(engine, number, *operations), StepAnswer)


def finish_turn(driver: Driver, engine: EngineId, turn: int) -> None:
    """Ten blocks of a chat of its own, in three steps, turn by turn from 0 on."""
    keys = tuple(key(100 * turn + number) for number in range(10))
    allocate = Allocate(sequence=SequenceId(turn), token_count=40, session=f"chat {turn}")
    commit = Commit(sequence=SequenceId(turn), first_block=0, block_keys=keys)
    free = Free(sequences=(SequenceId(turn),), retention=Retention.SESSION)
    for number, operations in enumerate([(allocate,), (commit, free), ()], start=3 * turn + 1):
        driver.ask(step(engine, number, *operations), StepAnswer)


def disk_frames_used(driver: Driver) -> int:
    [usage] = [tier for tier in driver.reports.usage().tiers if tier.tier is Tier.DISK]
    return usage.frames_total - usage.frames_free
