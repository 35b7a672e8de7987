"""A Drain from the call to its answer: the core is asked again and again, and movers write what it names."""

import asyncio
from collections.abc import Callable

from kvstore.core.answers import DrainAnswer
from kvstore.core.calls import Drain
from kvstore.server.clock import now
from kvstore.server.running import RunningStore

__all__ = ["drain_to_disk"]

# It looks so often how far it is, and gives up after so many looks at which nothing moved or had come.
LOOK_SECONDS = 1.0
STUCK_LOOKS = 10
# Between two such looks.
PAUSE_SECONDS = 0.1


async def drain_to_disk(
    running: RunningStore, seconds: float, *, goes_on: Callable[[], bool]
) -> tuple[int, int]:
    """Has what is worth keeping written, while `goes_on`: blocks written, and those that are left.

    Until all is on disk, nothing more gets there (a full or failing disk), or the time is over.
    """
    deadline = now() + seconds
    answer = running.ask(Drain(time=now()), DrainAnswer)
    stored_before, stuck = answer.blocks_stored, 0
    while answer.blocks_moving and stuck < STUCK_LOOKS and goes_on():
        seconds_left = deadline - now()
        if seconds_left <= 0:
            break
        last = answer.blocks_stored
        await running.end_transfers(min(seconds_left, LOOK_SECONDS))
        is_idle = running.is_idle
        answer = running.ask(Drain(time=now()), DrainAnswer) if goes_on() else answer
        # Writes that have failed were asked for again just now; room may come with the next tick.
        stuck = stuck + 1 if is_idle and answer.blocks_stored == last else 0
        if stuck:
            await asyncio.sleep(PAUSE_SECONDS)
    return answer.blocks_stored - stored_before, answer.blocks_left
