"""For which share of the time something holds, the last seconds counting most."""

import math

__all__ = ["HeldShare"]


class HeldShare:
    """Exponentially weighted by age: what was `seconds` ago counts for 1/e of what is now."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._holds = False
        self._share = 0.0
        self._since = 0.0

    def set(self, holds: bool, time: float) -> None:
        """From now on it does, or does not. Told once more it changes nothing."""
        self._share, self._since = self.at(time), max(time, self._since)
        self._holds = holds

    def at(self, time: float) -> float:
        passed = max(0.0, time - self._since)
        return self._holds + (self._share - self._holds) * math.exp(-passed / self._seconds)
