"""Makes a failing run small: leaves out of its schedule and configuration what it can fail without."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvstore.sim.attempts import Failure, attempt
from kvstore.sim.config import SimConfig
from kvstore.sim.schedule import Kind, Stimulus

__all__ = ["RUNS_MAX", "shrink"]

# Runs that may be spent on it: some seconds.
RUNS_MAX = 400

# What makes a run simpler, in the order in which it is tried.
SIMPLER: tuple[tuple[str, object], ...] = (
    ("ranks", 1),
    ("namespaces", 1),
    ("fail_share", 0.0),
    ("slow_share", 0.0),
    ("reorder_share", 0.0),
    ("single_share", 0.0),
    ("chat_share", 0.0),
    ("judges_turns", False),
    ("copy_from_percent", 0),
    ("by_cost", False),
    ("eviction", 0),
    ("disk_frames", 0),
    ("cpu_frames", 0),
    ("lag", 0),
    ("transfers_per_link_max", 1),
    ("writes_max", 1),
)


def shrink(failure: Failure, runs_max: int | None = None) -> Failure:
    """The smallest run found that fails in the same way. Always one: this one, if need be."""
    return _Shrinker(failure, RUNS_MAX if runs_max is None else runs_max).shrink()


class _Shrinker:
    def __init__(self, failure: Failure, runs_max: int) -> None:
        self._best, self._runs_left = failure, runs_max

    def shrink(self) -> Failure:
        self._try(self._best.config, self._best.schedule[: self._best.turns])
        self._simplify()
        for part in self._parts():
            self._try(self._best.config, [each for each in self._best.schedule if each not in part])
        self._bisect()
        self._simplify()
        return self._best

    def _simplify(self) -> None:
        for name, value in SIMPLER:
            config = self._best.config
            without_cpu = name == "cpu_frames" and config.disk_frames
            if getattr(config, name) != value and not without_cpu:
                self._try(replace(config, **{name: value}), self._best.schedule)  # type: ignore[arg-type]

    def _parts(self) -> Iterator[set[Stimulus]]:
        """All that happens to one engine, and all of one kind."""
        schedule = self._best.schedule
        for place in sorted({each.place for each in schedule}):
            yield {each for each in schedule if each.place == place and each.kind is not Kind.RESTART}
        for kind in Kind:
            if kind is not Kind.TURN:
                yield {each for each in schedule if each.kind is kind}

    def _bisect(self) -> None:
        """Delta debugging: leaves out halves, then quarters, down to single entries."""
        pieces = 2
        while len(self._best.schedule) > 1 and self._runs_left:
            schedule = self._best.schedule
            size = -(-len(schedule) // pieces)
            starts = range(0, len(schedule), size)
            if any(self._try(self._best.config, schedule[:at] + schedule[at + size :]) for at in starts):
                pieces = max(pieces - 1, 2)
            elif size == 1:
                return
            else:
                pieces = min(2 * pieces, len(schedule))

    def _try(self, config: SimConfig, schedule: Sequence[Stimulus]) -> bool:
        """Whether this smaller run fails in the same way; then it is the best so far."""
        if not self._runs_left or (config == self._best.config and len(schedule) == len(self._best.schedule)):
            return False
        self._runs_left -= 1
        result = attempt(config, schedule)
        if not isinstance(result, Failure) or result.sign != self._best.sign:
            return False
        self._best = replace(result, schedule=tuple(schedule[: result.turns]))
        return True
