"""Whose prompt is to be brought up from disk while it waits for its turn, and how much of it.

A Prefetch takes no room from who runs, but what it brings up takes the place of what is cached, and one
prompt that of another: a long queue that is brought up whole drives out its own beginning (measured: 420
blocks were read instead of 240). So it is asked for those alone who come in next, once for each, for no more
blocks in all than a part of the GPU tier has, and not while the CPU tier is short of room.
Tests: tests/engine/test_hints.py.
"""

from collections.abc import Iterable
from itertools import islice

from engine.requests import Stream, StreamState
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["STREAMS_AHEAD", "Hints"]

# So many are brought up before they come in; and of the GPU tier's frames they may have together.
STREAMS_AHEAD, SHARE_OF_FRAMES = 4, 0.25


class Hints:
    def __init__(self) -> None:
        self._pressure: pb.Pressure.ValueType = pb.PRESSURE_LOW
        # Blocks that were asked for, by those who have not come in since.
        self._given: dict[Stream, int] = {}

    def note_pressure(self, pressure: pb.Pressure.ValueType) -> None:
        """Of the CPU tier."""
        self._pressure = pressure

    def next(self, waiting: Iterable[Stream], frames: int, block_tokens: int) -> tuple[Stream | None, int]:
        """The first for whom it is time, and how many of its blocks.

        waiting  those who are outside, in the order of their turns
        frames   of the GPU tier
        """
        # Who was overtaken after it was brought up counts until it comes in.
        self._given = {each: count for each, count in self._given.items() if each.state is StreamState.QUEUED}
        room = int(frames * SHARE_OF_FRAMES) - sum(self._given.values())
        if self._pressure != pb.PRESSURE_LOW or room <= 0:
            return None, 0
        for stream in islice(waiting, STREAMS_AHEAD):
            blocks = min(stream.findable_blocks(block_tokens), room)
            if stream.state is StreamState.QUEUED and stream not in self._given and blocks:
                self._given[stream] = blocks
                return stream, blocks
        return None, 0

    def start_over(self) -> None:
        """Another service tells its own pressure, and has brought up nothing."""
        self._pressure = pb.PRESSURE_LOW
        self._given.clear()
