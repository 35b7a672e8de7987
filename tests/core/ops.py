"""The simulator's operations."""

from kvstore.sim.ops import activity, allocate, commit, end_session, fork, free, grow, swap_in, swap_out

__all__ = ["activity", "allocate", "commit", "end_session", "fork", "free", "grow", "swap_in", "swap_out"]
