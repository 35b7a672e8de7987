"""How busy something is, and what a second of it is worth then (POLICY 2.2 and 2.5).

    λ = 1 / (1 − ρ), at most 10

Queueing turns seconds of work into seconds of delay at that rate. ρ is smoothed over a second, and a price
that was told holds until it is off by a tenth.
"""

import math

__all__ = ["BusyShare", "Price"]

SMOOTHING_SECONDS = 1.0
# Work is told in pieces, by several engines: less than this is put together first.
STRETCH_SECONDS = 0.1
PRICE_MAX = 10.0
DEAD_BAND = 0.1


class BusyShare:
    """Of the time, smoothed; from seconds of work as they are told."""

    def __init__(self) -> None:
        self._share = 0.0
        self._time = 0.0
        # Work since then.
        self._seconds = 0.0

    def add(self, seconds: float, time: float) -> None:
        """So much more work had been done by then."""
        self._seconds += seconds
        if time - self._time >= STRETCH_SECONDS:
            self._share, self._time, self._seconds = self.at(time), time, 0.0

    def at(self, time: float) -> float:
        """Where nothing was told of, nothing was done."""
        passed = time - self._time
        if passed <= 0:
            return self._share
        busy = min(1.0, self._seconds / passed)
        return busy + (self._share - busy) * math.exp(-passed / SMOOTHING_SECONDS)


class Price:
    """λ, which follows ρ in steps."""

    def __init__(self) -> None:
        self._price = 1.0

    def at(self, share: float) -> float:
        price = min(PRICE_MAX, 1 / max(1 - share, 1 / PRICE_MAX))
        if abs(price - self._price) > DEAD_BAND * self._price:
            self._price = price
        return self._price
