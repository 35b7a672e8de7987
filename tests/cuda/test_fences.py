"""Cases 1.14 and 1.15: copies of the service against kernels of the engine, ordered by fences alone.

Everything is real but the GPU: store, movers, the device's thread. The GPU's streams run late and in any
order, by seed; kernels of the engine and copies of the service share one device. Each test is shown to be
able to fail: with an engine that tells steps as completed that have not, the fences order nothing, and it is
seen.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from kvstore.core.types import SequenceState
from kvstore.server.config import ServeConfig
from kvstore.server.driver import Driver
from kvstore.server.gpus import open_gpus
from tests.core.ops import free
from tests.cuda.fake import FakeDriver, fake_uuid
from tests.cuda.stream_engine import StreamEngine
from tests.server.driving import Stopped, attach

# 48 frames: what comes in has to take the frames of what has just gone.
GPU_FRAMES, CPU_FRAMES, BLOCKS = 48, 192, 20
ROUNDS = 6
SEEDS = range(8)
# So many runs are enough for the planted fault to show, by far.
FAULTY_SEEDS = range(100, 108)
FAULTS_SEEN = 2

Scenario = Callable[[StreamEngine, random.Random], Coroutine[None, None, None]]


async def run_scenario(folder: Path, scenario: Scenario, seed: int, tells_truth: bool) -> list[str]:
    """What its kernels found wrong."""
    cuda = FakeDriver(seed, memory_bytes=4 << 20, copies_batches=seed % 2 == 0)
    gpus = await asyncio.to_thread(open_gpus, [fake_uuid(0)], cuda)
    assert gpus is not None
    config = ServeConfig(
        socket=folder / "k.sock",
        gpu_bytes=GPU_FRAMES * 4096,
        gpu_devices=(fake_uuid(0),),
        cpu_bytes=CPU_FRAMES * 4096,
    )
    driver = Driver(config, None, Stopped(), gpus=gpus)
    try:
        engine = StreamEngine(driver, await attach(driver), cuda[0], tells_truth=tells_truth)
        await scenario(engine, random.Random(seed))
        await engine.finish()
        assert driver.failure is None
        return engine.wrong
    finally:
        assert await driver.close(10.0)
        gpus.close(10.0)
        cuda.close()


async def written_and_swapped_out_at_once(engine: StreamEngine, rng: random.Random) -> None:
    """1.14. A kernel fills blocks; the step after it swaps them out. What comes back is what it wrote."""
    for number in range(1, ROUNDS + 1):
        blocks = rng.randrange(1, BLOCKS)
        frames = await engine.allocate(number, blocks)
        engine.launch(engine.writing(frames, number))
        engine.swap_out(number, blocks)
        await engine.until(number, SequenceState.SWAPPED)
        # Others leave something else in its frames meanwhile.
        others = await engine.allocate(1000 + number, rng.randrange(1, GPU_FRAMES))
        engine.launch(engine.writing(others, 1000 + number))
        engine.discard(1000 + number)
        back = await engine.swap_in(number)
        engine.step()
        engine.launch(engine.reading(back, number))
        engine.discard(number)


async def read_and_given_up_at_once(engine: StreamEngine, rng: random.Random) -> None:
    """1.15. A kernel still reads blocks; the step after it frees them, and another sequence is brought in,
    into the same frames. The kernel reads what was there."""
    for number in range(1, ROUNDS + 1):
        waiting, reading = 10 * number, 10 * number + 1
        frames = await engine.allocate(waiting, BLOCKS)
        engine.launch(engine.writing(frames, waiting))
        engine.swap_out(waiting, BLOCKS)
        await engine.until(waiting, SequenceState.SWAPPED)
        # All of the GPU but a few frames.
        blocks = GPU_FRAMES - rng.randrange(1, BLOCKS)
        frames = await engine.allocate(reading, blocks)
        engine.launch(engine.writing(frames, reading))
        engine.step()
        engine.launch(engine.reading(frames, reading, times=2))
        back = await engine.swap_in(waiting, free(reading))
        engine.step()
        engine.launch(engine.reading(back, waiting))
        engine.discard(waiting)


SCENARIOS = {"1.14": written_and_swapped_out_at_once, "1.15": read_and_given_up_at_once}


@pytest.mark.parametrize("seed", SEEDS)
def test_case_1_14_a_copy_down_waits_for_the_kernel_that_writes(tmp_path: Path, seed: int) -> None:
    assert asyncio.run(run_scenario(tmp_path, SCENARIOS["1.14"], seed, True)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_case_1_15_a_copy_up_waits_for_the_kernel_that_reads(tmp_path: Path, seed: int) -> None:
    assert asyncio.run(run_scenario(tmp_path, SCENARIOS["1.15"], seed, True)) == []


@pytest.mark.parametrize("case", SCENARIOS)
def test_without_the_fence_it_goes_wrong_and_is_seen(tmp_path: Path, case: str) -> None:
    """Of eight seeds most show it; that any does is what makes the tests above worth something."""
    seen = 0
    for seed in FAULTY_SEEDS:
        seen += bool(asyncio.run(run_scenario(tmp_path, SCENARIOS[case], seed, False)))
        if seen == FAULTS_SEEN:
            return
    pytest.fail(f"the planted fault showed in {seen} of {len(FAULTY_SEEDS)} runs")
