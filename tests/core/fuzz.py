"""Random runs of the simulator, for tests that look at one store that `make_store(**sizes)` makes again."""

from kvstore.core.effects import Effects
from kvstore.core.events import Event
from kvstore.sim.config import draw_config
from kvstore.sim.schedule import draw_schedule
from kvstore.sim.simulation import START, Simulation

__all__ = ["Fuzz"]

TURNS = 200
# Those of `make_store`, one store from its first event on, and no engines that make unary calls.
DEFAULTS: dict[str, float] = {
    "engines": 2,
    "gpu_frames": 16,
    "cpu_frames": 0,
    "disk_frames": 0,
    "drop_tokens_max": 8,
    "by_cost": 0,
    "eviction": 0,
    "transfer_blocks_max": 32,
    "transfers_per_link_max": 2,
    "writes_max": 3,
    "forget_lot_blocks": 512,
    "retained_blocks_max": 0,
    "forget_share": 0.004,
    "queue_blocks_max": 65_536,
    "restart_share": 0,
    "single_share": 0,
    "drain_share": 0,
    "percent_of_a": 50,
    "copy_from_percent": 0,
    "watched": False,
}


class Fuzz(Simulation):
    """`turn()` goes one entry of the schedule further."""

    def __init__(self, seed: int, **sizes: float) -> None:
        config = draw_config(seed, **DEFAULTS | sizes)
        super().__init__(config, draw_schedule(config, TURNS, START))

    def note(self, turns: int = TURNS) -> list[tuple[Event, Effects]]:
        """Goes so far, and returns what entered the store and what came of it."""
        noted: list[tuple[Event, Effects]] = []
        handle = self.world.store.handle

        def handle_and_note(event: Event) -> Effects:
            effects = handle(event)
            noted.append((event, effects))
            return effects

        self.world.store.handle = handle_and_note  # type: ignore[method-assign]
        for _ in range(turns):
            self.turn()
        del self.world.store.handle
        return noted
