"""What happens when, as far as it does not depend on the store: drawn from the seed before the run.

Each entry has a seed of its own for what it draws. So a run from which entries are left out is a
run like any other, in which the rest happens much as before: that is what makes a failure small
(`shrink.py`).
"""

import random
from dataclasses import dataclass
from enum import Enum

from kvstore.sim.config import SimConfig

__all__ = ["Kind", "Stimulus", "draw_schedule"]


class Kind(Enum):
    TURN = "an engine comes to its next step"
    KILL = "an engine's processes are killed"
    SILENCE = "an engine hangs past its lease"
    DETACH = "an engine leaves"
    RESTART = "the service is killed and started again"
    PAUSE = "the service stands still"
    DISK_FULL = "the disk is full for a while"
    FLIP = "a bit on disk changes"
    FORGET = "something is forgotten"
    SCRUB = "the disk looks for changed bits"
    AUDIT = "promised room is looked for"


@dataclass(frozen=True, slots=True)
class Stimulus:
    """`place`: which of the engines at once, for those that concern one."""

    time: float
    kind: Kind
    place: int
    seed: int


def draw_schedule(config: SimConfig, turns: int, start: float) -> list[Stimulus]:
    """`turns` entries, the engines' turns each at its own pace."""
    rng = random.Random(f"{config.seed} schedule")
    paces = [10 ** rng.uniform(-2.3, -1.0) for _ in range(config.engines)]
    next_turns = [start + rng.uniform(0, pace) for pace in paces]
    shares = [
        (Kind.KILL, config.kill_share),
        (Kind.SILENCE, config.silence_share),
        (Kind.DETACH, config.detach_share),
        (Kind.RESTART, config.restart_share),
        (Kind.PAUSE, config.pause_share),
        (Kind.DISK_FULL, config.disk_full_share),
        (Kind.FLIP, config.flip_share),
        (Kind.SCRUB, config.scrub_share),
        (Kind.AUDIT, config.audit_share),
        (Kind.FORGET, config.forget_share),
    ]
    kinds = [kind for kind, _ in shares] + [Kind.TURN]
    weights = [share for _, share in shares] + [1 - sum(share for _, share in shares)]
    schedule: list[Stimulus] = []
    for _ in range(turns):
        place = min(range(config.engines), key=next_turns.__getitem__)
        time = next_turns[place]
        (kind,) = rng.choices(kinds, weights)
        if kind is Kind.TURN:
            next_turns[place] += paces[place] * rng.uniform(0.5, 1.5)
        schedule.append(Stimulus(time, kind, place, rng.getrandbits(48)))
    return schedule
