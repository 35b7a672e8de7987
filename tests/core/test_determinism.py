"""The same events give the same effects: a replayer sees what the server saw."""

import pytest

from kvstore.core.effects import Effects
from kvstore.core.events import Event
from tests.core.fuzz import Fuzz
from tests.core.snapshot import snapshot
from tests.core.world import make_store


@pytest.mark.parametrize("sizes", [{"cpu_frames": 12, "disk_frames": 20}, {}], ids=str)
def test_the_same_events_twice_give_the_same_effects_and_the_same_state(sizes: dict[str, int]) -> None:
    run = Fuzz(5, **sizes)
    events: list[tuple[Event, Effects]] = []
    handle = run.world.store.handle

    def handle_and_note(event: Event) -> Effects:
        effects = handle(event)
        events.append((event, effects))
        return effects

    run.world.store.handle = handle_and_note  # type: ignore[method-assign]
    for _ in range(60):
        run.turn()
    replayed = make_store(**sizes)
    for event, effects in events:
        assert replayed.handle(event) == effects
    del run.world.store.handle
    assert snapshot(replayed) == snapshot(run.world.store)
