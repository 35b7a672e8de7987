"""The store's clock: seconds that only ever run forward, and what they are on the wall.

The core reckons in monotonic seconds alone; the contract's Timestamps are made here and nowhere else.
"""

import time

from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["fill_timestamp", "now", "timestamp", "timestamp_today", "wall_now"]

now = time.monotonic
wall_now = time.time

OFFSET_NS = time.time_ns() - time.monotonic_ns()


def timestamp(core_time: float) -> Timestamp:
    """One moment is always the same Timestamp, so the kept answer of a Step has the same bytes again.

    A wall clock that is set meanwhile, or a machine that sleeps, shows with the next service only.
    """
    seconds, nanos = _on_the_wall(core_time, OFFSET_NS)
    return Timestamp(seconds=seconds, nanos=nanos)


def fill_timestamp(field: Timestamp, core_time: float) -> None:
    """The same, in the place where it is wanted."""
    field.seconds, field.nanos = _on_the_wall(core_time, OFFSET_NS)


def timestamp_today(core_time: float) -> Timestamp:
    """By the wall clock as it is now: for who is going to compare it with that at once."""
    seconds, nanos = _on_the_wall(core_time, time.time_ns() - time.monotonic_ns())
    return Timestamp(seconds=seconds, nanos=nanos)


def _on_the_wall(core_time: float, offset_ns: int) -> tuple[int, int]:
    return divmod(offset_ns + round(core_time * 1e9), 1_000_000_000)
