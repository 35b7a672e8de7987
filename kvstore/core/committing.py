"""Commits: how a block that an engine has filled becomes one that others can find.

First it is written down, with the engine's own stream as the only one that may rely on it;
then, when the work that filled it has completed, it is published. The first commit of a key
wins; later ones stay private to their sequence.
"""

from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine, Publish, SwapOut
from kvstore.core.memory import Memory
from kvstore.core.operations import Commit
from kvstore.core.prefix import chain_places
from kvstore.core.sequences import Sequence
from kvstore.core.types import CPU, DISK, SWAPPED, SWAPPING_OUT, BlockRow, StepNumber

__all__ = ["Committing"]


class Committing:
    def __init__(self, config: StoreConfig, memory: Memory) -> None:
        self._config = config
        self._memory = memory

    def commit(self, engine: Engine, operation: Commit, fence: StepNumber, completed: StepNumber) -> None:
        """Writes down the blocks that are new; they are published when `fence` has passed: with this step, if
        its engine has `completed` so much."""
        sequence = engine.sequences[operation.sequence]
        first = sequence.committed
        # Of a sequence that the store has moved meanwhile, what it kept can be committed.
        end = min(operation.first_block + len(operation.block_keys), self._full_blocks(sequence))
        if end <= first:
            return
        known = sequence.keys[first:end]
        if known and known != [*operation.block_keys[first - operation.first_block :][: len(known)]]:
            # An earlier commit, before a drop, may wait for its fence with the keys that were here.
            sequence.keys = sequence.keys[:first]
        sequence.keys[operation.first_block : end] = operation.block_keys[: end - operation.first_block]
        sequence.committed = end
        if sequence.forgotten:
            return
        if fence > completed:
            pending = engine.pending.setdefault(sequence.domain, {})
            places = chain_places(sequence.keys, first, end)
            for place, row in zip(places, sequence.rows[first:end], strict=True):
                pending.setdefault(place, BlockRow(row))
        publication = Publish(
            fence=fence,
            domain=sequence.domain,
            owner=sequence.owner,
            rows=sequence.rows,
            keys=sequence.keys,
            first=first,
            end=end,
        )
        self._schedule(engine, sequence, publication)

    def _schedule(self, engine: Engine, sequence: Sequence, publication: Publish) -> None:
        leaving = sequence.state is SWAPPING_OUT
        if sequence.state is SWAPPED or (leaving and sequence.begun):
            # All work on its blocks has completed.
            self.publish(engine, [publication])
            return
        engine.fences.append(publication)
        sequence.commit_fence = publication.fence
        if leaving:
            # Copies begin after the publication, so that a failed one can't take its rows away.
            sequence.out_fence = publication.fence
            engine.fences.append(SwapOut(fence=publication.fence, sequence=sequence))

    def _full_blocks(self, sequence: Sequence) -> int:
        if sequence.state in (SWAPPING_OUT, SWAPPED):
            return sequence.filled_tokens // self._config.block_tokens
        return len(sequence.rows)

    def publish(self, engine: Engine, publications: list[Publish]) -> None:
        """Commits become visible. The first commit of a key wins; later ones stay private."""
        blocks = self._memory.blocks
        rows = self._memory.prefix.publish(publications)
        for publication in publications:
            pending = engine.pending.get(publication.domain)
            if not pending:
                continue
            begin, end = publication.first, publication.end
            places = chain_places(publication.keys, begin, end)
            for place, row in zip(places, publication.rows[begin:end], strict=True):
                if pending.get(place) == row:
                    del pending[place]
        blocks.writer[rows] = engine.writer
        # A swapped sequence's blocks were its own below, too: from now on they may be evicted there.
        below = rows[blocks.valid[CPU][rows]]
        if below.size:
            blocks.changes += 1
            self._memory.eviction.touch(CPU, below[::-1])
        on_disk = rows[blocks.has_frame(DISK, rows)]
        if on_disk.size:
            # Was found before, and could not be read or hung on what could not. A claim may hold it, but
            # what it hangs on need not be on disk any more.
            self._memory.forget(on_disk)
