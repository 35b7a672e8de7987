"""The store's clock: seconds that only ever run forward, and what they are on the wall.

The core reckons in monotonic seconds alone; the contract's Timestamps are made here and nowhere else.
"""

import time

from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["now", "timestamp", "timestamp_today", "wall_now"]

now = time.monotonic
wall_now = time.time

OFFSET_NS = time.time_ns() - time.monotonic_ns()


def timestamp(core_time: float) -> Timestamp:
    """One moment is always the same Timestamp, so the kept answer of a Step has the same bytes again.

    A wall clock that is set meanwhile, or a machine that sleeps, shows with the next service only.
    """
    return _timestamp(core_time, OFFSET_NS)


def timestamp_today(core_time: float) -> Timestamp:
    """By the wall clock as it is now: for who is going to compare it with that at once."""
    return _timestamp(core_time, time.time_ns() - time.monotonic_ns())


def _timestamp(core_time: float, offset_ns: int) -> Timestamp:
    seconds, nanos = divmod(offset_ns + round(core_time * 1e9), 1_000_000_000)
    return Timestamp(seconds=seconds, nanos=nanos)
