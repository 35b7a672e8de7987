"""The bytes behind a store: every frame holds the block version that it should, or what it should not.

The shadow memory is the oracle. Each frame of each tier and rank holds a version: whose block it
is, which place in which text, and the how-manieth time it was computed. Wherever the bytes have
been, a block that is read must be the one that its sequence wrote or saw there before, or one that
was committed under the same key; on all ranks the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kvstore.core.effects import Transfer
from kvstore.core.types import Tier
from kvstore.sim.disk import ShadowDisk
from kvstore.sim.origins import Origin, Origins
from kvstore.sim.texts import BLOCK_TOKENS, Content
from kvstore.sim.work import CopyFrame, Inherit, Publish, ReadTokens, Space, Work, WriteTokens
from kvstore.sim.wrong import Wrong

__all__ = ["GARBAGE", "NOTHING", "Failed", "Shadow", "Version"]

# Rank and position in the transfer of each block that did not come.
Failed = set[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Version:
    """What a frame holds. Fewer tokens than a block's: its part-filled head."""

    space: Space
    position: int
    # Counts computations of blocks: two with the same tokens differ in it.
    generation: int
    tokens: Content

    def __str__(self) -> str:
        if self.position < 0:
            return "nothing" if self == NOTHING else "garbage"
        return (
            f"block {self.position} (namespace {self.space.namespace}, tenant {self.space.tenant}, "
            f"tokens {list(self.tokens)}, generation {self.generation})"
        )


# What a copy that failed leaves behind, and what a frame holds before anything was written to it.
GARBAGE = Version(Space(0, 0), -1, -1, ())
NOTHING = Version(Space(0, 0), -1, 0, ())


class Shadow:
    """Per rank and tier, frame to version. The disk goes by key, as the real one does."""

    def __init__(self, rank_count: int = 1) -> None:
        self.ranks = range(rank_count)
        self.frames: tuple[dict[Tier, dict[int, Version]], ...] = tuple(
            {Tier.GPU: {}, Tier.CPU: {}} for _ in self.ranks
        )
        self.disk: ShadowDisk[Version] = ShadowDisk()
        # Generations that some engine has committed, by owner and tokens of the block.
        self.committed: dict[tuple[Space, Content], set[int]] = {}
        self.origins = Origins()
        # Blocks that were read and found right.
        self.reads = 0
        self._last_generation = 0

    def held(self, tier: Tier, frame: int, rank: int = 0) -> Version:
        return self.frames[rank][tier].get(frame, NOTHING)

    def fill(
        self, tier: Tier, frame: int, position: int, tokens: Content, space: Space | None = None
    ) -> None:
        """As if a kernel had written it, on all ranks."""
        version = Version(space or Space(), position, self._next_generation(), tokens)
        for rank in self.ranks:
            self.frames[rank][tier][frame] = version

    def spoil(self, tier: Tier, frames: Iterable[int]) -> None:
        """Something that is nobody's content was written to these frames, on all ranks."""
        for rank in self.ranks:
            for frame in frames:
                self.frames[rank][tier][frame] = GARBAGE

    def lose_memory(self) -> None:
        """The service is gone, and its pools with it."""
        for frames in self.frames:
            for tier in frames:
                frames[tier] = {}

    # ------------------------------------------------------------------------ transfers

    def transfer(self, transfer: Transfer, failed: Failed, rank: int) -> None:
        """The bytes of one rank, between GPU and CPU or from disk."""
        target = self.frames[rank][transfer.target]
        for position, frame in enumerate(transfer.target_frames):
            if (rank, position) in failed:
                target[frame] = GARBAGE
            elif transfer.source is Tier.DISK:
                target[frame] = self.disk.part(transfer.keys[position], rank)
            else:
                target[frame] = self.held(transfer.source, transfer.source_frames[position], rank)

    def write(self, transfer: Transfer, count: int) -> None:
        """The first `count` blocks of a write to disk, each with the parts of all ranks."""
        for key, frame in list(zip(transfer.keys, transfer.source_frames, strict=True))[:count]:
            self.disk.put(key, tuple(self.held(Tier.CPU, frame, rank) for rank in self.ranks))

    # -------------------------------------------------------------------------- kernels

    def execute(self, work: Work) -> None:
        """What a kernel of an engine does, on every rank."""
        match work:
            case CopyFrame():
                for rank in self.ranks:
                    self.frames[rank][Tier.GPU][work.target] = self.held(Tier.GPU, work.source, rank)
            case ReadTokens():
                for start in range(0, work.count, BLOCK_TOKENS):
                    self._read(work, start // BLOCK_TOKENS)
            case WriteTokens():
                for block in range(work.first // BLOCK_TOKENS, -(-work.end // BLOCK_TOKENS)):
                    self._write(work, block)
            case Publish():
                # A block that was found, and not looked at yet, was committed before.
                for block in sorted(work.seen.keys() & set(range(work.first, work.end))):
                    tokens = work.tokens[block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS]
                    self.committed.setdefault((work.space, tokens), set()).add(work.seen[block])
                    origin = Origin(work.space, tokens, work.session, work.engine)
                    self.origins.commit(work.seen[block], origin)
            case Inherit():
                blocks = [block for block in work.parent if block < work.end]
                work.child.update({block: work.parent[block] for block in blocks})

    def _read(self, work: ReadTokens, block: int) -> None:
        start, frame = block * BLOCK_TOKENS, work.table[block]
        wanted = work.tokens[start : min(start + BLOCK_TOKENS, work.count)]
        for rank in self.ranks:
            held = self.held(Tier.GPU, frame, rank)
            same = (held.space, held.position, held.tokens[: len(wanted)]) == (work.space, block, wanted)
            if not same:
                self._refuse(work, block, rank, f"tokens {list(wanted)}")
            if work.seen is not None and work.seen.get(block) != held.generation:
                if held.generation not in self.committed.get((work.space, wanted), ()):
                    self._refuse(work, block, rank, f"generation {work.seen.get(block)} or a committed one")
                if self.origins.is_forgotten(held.generation, held.tokens, work.seen.granted_at):
                    self._refuse(work, block, rank, "what was forgotten before it was asked for")
                work.seen[block] = held.generation
        self.reads += 1

    def _write(self, work: WriteTokens, block: int) -> None:
        start, frame = block * BLOCK_TOKENS, work.table[block]
        first, end = max(work.first, start), min(work.end, start + BLOCK_TOKENS)
        before, generation = work.tokens[start:first], self._next_generation()
        for rank in self.ranks:
            held = self.held(Tier.GPU, frame, rank)
            if before:
                same = (held.space, held.position, held.tokens[: len(before)]) == (work.space, block, before)
                if not same:
                    self._refuse(work, block, rank, f"tokens {list(before)} to go on from")
                generation = held.generation
            written = Version(work.space, block, generation, work.tokens[start:end])
            self.frames[rank][Tier.GPU][frame] = written
        work.seen[block] = generation

    def _refuse(self, work: ReadTokens | WriteTokens, block: int, rank: int, wanted: str) -> None:
        frame = work.table[block]
        owner = f"block {block} of {work.sequence or 'a sequence'}"
        space = f"namespace {work.space.namespace}, tenant {work.space.tenant}"
        raise Wrong(
            f"{owner} ({space}): GPU frame {frame} of rank {rank} holds "
            f"{self.held(Tier.GPU, frame, rank)}, not {wanted}",
            ((Tier.GPU, frame),),
        )

    def _next_generation(self) -> int:
        self._last_generation += 1
        return self._last_generation

    def is_committed(self, space: Space, block: Content) -> bool:
        return (space, block) in self.committed
