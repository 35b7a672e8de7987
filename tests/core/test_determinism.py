"""The same events give the same effects: a replayer sees what the server saw."""

import pytest

from tests.core.fuzz import Fuzz
from tests.core.snapshot import snapshot
from tests.core.world import make_store


@pytest.mark.parametrize(
    "sizes", [{"cpu_frames": 12, "disk_frames": 20}, {"cpu_frames": 12, "by_cost": 1}, {}], ids=str
)
def test_the_same_events_twice_give_the_same_effects_and_the_same_state(sizes: dict[str, int]) -> None:
    run = Fuzz(5, **sizes)
    events = run.note(60)
    replayed = make_store(**sizes)
    for event, effects in events:
        assert replayed.handle(event) == effects
    assert snapshot(replayed) == snapshot(run.world.store)
