"""The simulator's random runs."""

from kvstore.sim.fuzz import Fuzz, fuzz

__all__ = ["Fuzz", "fuzz"]
