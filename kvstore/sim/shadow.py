"""The bytes behind a store: frames that hold tokens, and the work of engines on them.

The shadow memory is the oracle. Each frame of each tier holds the tokens that an engine wrote
there, and no two texts have a token in common but where one branched off the other. Wherever
the bytes have been, a block that is read must hold exactly the tokens it stands for.
"""

from dataclasses import dataclass

from kvstore.core.effects import DiskDelete, Transfer
from kvstore.core.types import StoredKey, Tier
from kvstore.sim.wrong import expect

__all__ = ["BLOCK_TOKENS", "Content", "CopyFrame", "ReadTokens", "Shadow", "Work", "WriteTokens"]

BLOCK_TOKENS = 4
Content = tuple[int, ...]

# What a copy that failed leaves behind, and what a frame holds before anything was copied to it.
GARBAGE: Content = (-1,)
NOTHING: Content = (-2,)


@dataclass(frozen=True, slots=True)
class CopyFrame:
    """Copy on write, before the step's forward pass."""

    source: int
    target: int

    def frames_read(self) -> tuple[int, ...]:
        return (self.source,)

    def frames_written(self) -> tuple[int, ...]:
        return (self.target,)


@dataclass(frozen=True, slots=True)
class ReadTokens:
    """Attention over the first `count` tokens of a text."""

    table: tuple[int, ...]
    tokens: Content
    count: int

    def frames_read(self) -> tuple[int, ...]:
        return self.table[: -(-self.count // BLOCK_TOKENS)]

    def frames_written(self) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class WriteTokens:
    """KV of the tokens [first, end) of a text, each into its block."""

    table: tuple[int, ...]
    tokens: Content
    first: int
    end: int

    def frames_read(self) -> tuple[int, ...]:
        return ()

    def frames_written(self) -> tuple[int, ...]:
        return self.table[self.first // BLOCK_TOKENS : -(-self.end // BLOCK_TOKENS)]


Work = CopyFrame | ReadTokens | WriteTokens


class Shadow:
    """Per tier, frame to content. The disk goes by key, as the real one does."""

    def __init__(self) -> None:
        self.gpu: dict[int, Content] = {}
        self.cpu: dict[int, Content] = {}
        self.disk: dict[tuple[int, int, bytes], tuple[Content, StoredKey]] = {}
        # Blocks that were read and found right.
        self.reads = 0

    def delete(self, delete: DiskDelete) -> None:
        for key in delete.keys:
            self.disk.pop(_place(key), None)

    def spoil(self, key: StoredKey) -> None:
        """A block that can't be read from disk any more."""
        self.disk.pop(_place(key), None)

    def put(self, key: StoredKey, content: Content) -> None:
        """What lay on disk before the store started."""
        self.disk[_place(key)] = (content, key)

    def transfer(self, transfer: Transfer, failed: set[int]) -> None:
        frames = {Tier.GPU: self.gpu, Tier.CPU: self.cpu}
        pairs = zip(transfer.source_frames, transfer.target_frames, strict=True)
        for i, (source, target) in enumerate(pairs):
            if i in failed:
                if transfer.target is not Tier.DISK:
                    frames[transfer.target][target] = GARBAGE
            elif transfer.target is Tier.DISK:
                self.disk[_place(transfer.keys[i])] = (self.cpu.get(source, NOTHING), transfer.keys[i])
            elif transfer.source is Tier.DISK:
                self.cpu[target] = self.disk[_place(transfer.keys[i])][0]
            else:
                frames[transfer.target][target] = frames[transfer.source].get(source, NOTHING)

    def execute(self, work: Work) -> None:
        """What a kernel of an engine does."""
        match work:
            case CopyFrame():
                self.gpu[work.target] = self.gpu.get(work.source, NOTHING)
            case ReadTokens():
                self._read(work)
            case WriteTokens():
                self._write(work)

    def _read(self, work: ReadTokens) -> None:
        for start in range(0, work.count, BLOCK_TOKENS):
            block, end = start // BLOCK_TOKENS, min(start + BLOCK_TOKENS, work.count)
            held = self.gpu.get(work.table[block], NOTHING)[: end - start]
            wanted = work.tokens[start:end]
            expect(held == wanted, f"block {block} holds {held}, not {wanted}")
            self.reads += 1

    def _write(self, work: WriteTokens) -> None:
        for place in range(work.first, work.end):
            block = place // BLOCK_TOKENS
            start, frame = block * BLOCK_TOKENS, work.table[block]
            before = self.gpu.get(frame, NOTHING)[: place - start] if place > start else ()
            wanted = work.tokens[start:place]
            expect(before == wanted, f"the tail holds {before}, not {wanted} that was written to it")
            self.gpu[frame] = (*before, work.tokens[place])


def _place(key: StoredKey) -> tuple[int, int, bytes]:
    return key.namespace, key.tenant, key.key
