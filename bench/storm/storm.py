"""The storm itself: all visitors at once, a service that dies in between, and the calm after it.

What must be true afterwards: who stayed was answered rightly; nobody is under way; no frame is in use, none
in limbo, and the store knows no sequence.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from bench.storm.catalogue import Ask, Talk
from bench.storm.telling import Right, Told, read_told
from bench.storm.visitors import Findings, Setting, Visitor
from bench.storm.wire import Line
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["ask_quietly", "calm", "storm"]

CALM_SECONDS = 60.0
# Of the engine, until nothing is left of those who have gone.
STEPS_MAX = 300
LOOK_SECONDS = 0.02


async def ask_quietly(url: str, asks: Sequence[Ask], talks: Sequence[Talk]) -> None:
    """One after the other, of a server that nobody else asks: what is right."""
    line = await Line.open(url)
    try:
        for ask in asks:
            ask.right = await _answer(line, ask)
        for number, talk in enumerate(talks):
            for turn in range(len(talk.says)):
                talk.rights.append(await _answer(line, talk.ask(turn, f"quiet {number}")))
    finally:
        await line.close()


async def _answer(line: Line, ask: Ask) -> Right:
    told = Told()
    await line.send(ask.path, ask.body)
    await read_told(line, told)
    return Right.of(told)


async def storm(
    setting: Setting,
    seed: int,
    findings: Findings,
    *,
    visitors: int,
    seconds: float = float("inf"),
    visits_each: int = 1 << 30,
    kill: Callable[[], None] | None = None,
    kills_max: int = 1 << 30,
    kills_seconds: tuple[float, float] = (5.0, 15.0),
) -> None:
    """Until the time is over, or each has visited so often. `kill` has the service die and come back; it is
    called after a pause drawn between the two times, again and again, so often at the most."""
    end = time.monotonic() + seconds

    async def come_and_go(number: int) -> None:
        visitor = Visitor(setting, number, seed, findings)
        for _ in range(visits_each):
            if time.monotonic() >= end:
                break
            await visitor.visit()
        await visitor.leave()

    killing = asyncio.create_task(_kill(kill, kills_max, kills_seconds, seed, findings)) if kill else None
    async with asyncio.TaskGroup() as group:
        for number in range(visitors):
            group.create_task(come_and_go(number))
    if killing is not None:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)


async def _kill(
    kill: Callable[[], None], most: int, seconds: tuple[float, float], seed: int, findings: Findings
) -> None:
    draw = random.Random(f"{seed},kills")
    for _ in range(most):
        await asyncio.sleep(draw.uniform(*seconds))
        findings.counts["kills"] += 1
        # One that has begun is brought to its end, or nobody would know the service that it starts.
        begun = asyncio.create_task(asyncio.to_thread(kill))
        try:
            await asyncio.shield(begun)
        except asyncio.CancelledError:
            await begun
            raise


def calm(findings: Findings, usage: Callable[[], pb.Usage], answers: Callable[[], float]) -> pb.Usage:
    """Waits until all that was asked for has ended, and says what has not."""
    end, first = time.monotonic() + CALM_SECONDS, usage().steps.steps
    while problems := _left_over(now := usage(), answers()):
        if time.monotonic() > end:
            findings.faults.append(f"{CALM_SECONDS:g} seconds after the storm: {', '.join(problems)}")
            break
        time.sleep(LOOK_SECONDS)
    if (steps := now.steps.steps - first) > STEPS_MAX:
        findings.faults.append(f"what was left of those who had gone went on for {steps} steps")
    return now


def _left_over(usage: pb.Usage, answers: float) -> list[str]:
    gpu = usage.tiers[0]
    left = {
        "answers under way": answers,
        "frames in use": gpu.frames_used,
        "frames in limbo": gpu.frames_limbo,
        "sequences": sum(engine.sequences for engine in usage.engines),
    }
    return [f"{count:g} {name}" for name, count in left.items() if count]
