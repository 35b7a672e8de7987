"""Random runs of the simulator, for tests that look at one store that `make_store(**sizes)` makes again."""

from kvstore.sim.config import draw_config
from kvstore.sim.schedule import draw_schedule
from kvstore.sim.simulation import START, Simulation

__all__ = ["Fuzz"]

TURNS = 200
# Those of `make_store`, and neither a second store nor engines that make unary calls.
DEFAULTS = {
    "engines": 2,
    "gpu_frames": 16,
    "cpu_frames": 0,
    "disk_frames": 0,
    "drop_tokens_max": 8,
    "transfer_blocks_max": 32,
    "transfers_per_link_max": 2,
    "restart_share": 0,
    "single_share": 0,
}


class Fuzz(Simulation):
    """`turn()` goes one entry of the schedule further."""

    def __init__(self, seed: int, **sizes: int) -> None:
        config = draw_config(seed, **DEFAULTS | sizes)
        super().__init__(config, draw_schedule(config, TURNS, START))
