"""How often a running store looks at what."""

import asyncio
from collections.abc import Iterator

import pytest

from kvstore.server import beat
from kvstore.server.beat import LOOK_TICKS, Beat


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As fast as the loop turns."""
    monkeypatch.setattr(beat, "TICK_SECONDS", 0.0)


def _beaten(ticks: int) -> list[str]:
    """What was done until it had ticked so often, and in some turns of the loop after its end."""
    seen: list[str] = []

    async def run() -> None:
        ended = asyncio.Event()

        def tick() -> None:
            seen.append("tick")
            if seen.count("tick") == ticks:
                beating.end()
                ended.set()

        beating = Beat(asyncio.get_running_loop(), tick=tick, look=lambda: seen.append("look"))
        await ended.wait()
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(run())
    return seen


def test_looks_before_the_first_of_ten_ticks() -> None:
    def expected() -> Iterator[str]:
        for tick in range(2 * LOOK_TICKS + 1):
            if tick % LOOK_TICKS == 0:
                yield "look"
            yield "tick"

    assert _beaten(2 * LOOK_TICKS + 1) == [*expected()]


def test_ends_between_two_ticks() -> None:
    assert _beaten(1) == ["look", "tick"]
