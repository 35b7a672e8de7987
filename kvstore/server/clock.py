"""The store's clock: seconds that only ever run forward, and what they are on the wall.

The core reckons in monotonic seconds alone; the contract's Timestamps are made here and nowhere
else. The two are compared at each conversion, so a wall clock that was set shows at once.
"""

import time

from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["now", "timestamp"]

now = time.monotonic


def timestamp(core_time: float) -> Timestamp:
    wall_ns = time.time_ns() + round((core_time - now()) * 1e9)
    seconds, nanos = divmod(wall_ns, 1_000_000_000)
    return Timestamp(seconds=seconds, nanos=nanos)
