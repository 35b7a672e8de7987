"""Admission where nobody is ever pushed out: a request comes in when room for its last token is certain.

Each who runs is promised the blocks that it may still need: up to the end of the longest answer that it has
asked for, for each of its samples or beams. Who wants in needs as many frames as that, as if nothing of it
were cached, beside those that are held and those that are promised. From then on it counts for what it really
holds: a frame that several share is counted once. What nobody holds but is still cached is room, for it goes
when it is asked for.
Tests: tests/engine/test_promises.py.
"""

from collections.abc import Iterable

from engine.requests import Request, Stream
from kvstore.client import BlockTables

__all__ = ["Promises"]


class Promises:
    def __init__(self, block_tokens: int, *, shares: bool) -> None:
        """`shares`: blocks are found by their keys, and forks share them until they write to them."""
        self._block_tokens = block_tokens
        self.shares = shares
        # Of the pool; it is known when the engine has attached.
        self.frame_count = 0

    def blocks_of(self, request: Request) -> int:
        """The most that a request ever holds."""
        return self._blocks(request, max(request.samples, request.beams))

    def blocks_for(self, stream: Stream) -> int:
        """The most that one who wants in will hold, with those that are to be forked of it."""
        return self._blocks(stream.request, stream.width)

    def free_blocks(self, holding: Iterable[Stream], tables: BlockTables) -> int:
        """Blocks that are neither held by these nor promised to them."""
        held: set[int] = set()
        promised = 0
        for stream in holding:
            table = tables.table(stream.sequence) if stream.sequence in tables else []
            held.update(table)
            promised += self._still_needed(stream, len(table))
        return self.frame_count - len(held) - promised

    def _still_needed(self, stream: Stream, held: int) -> int:
        needed = self.blocks_for(stream) - held
        if not self.shares:
            return needed
        if not held:
            # A fork that is not in the tables yet has what its parent has filled.
            return needed - stream.committed_blocks
        # Since a fork a part-filled last block may be shared: who writes to it gets another.
        is_shared = stream.width == 1 and stream.room % self._block_tokens
        return needed + bool(is_shared)

    def _blocks(self, request: Request, width: int) -> int:
        # The last token of an answer is not fed to the model.
        tokens = len(request.prompt) + request.max_new_tokens - 1
        shared = len(request.prompt) // self._block_tokens if self.shares else 0
        return width * -(-tokens // self._block_tokens) - (width - 1) * shared
