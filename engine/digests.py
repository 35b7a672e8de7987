"""Proof that a block's bytes are the same before and after any journey.

A digest is taken of each block when it is committed, and of a part-filled last block when its sequence is
swapped out; whatever comes back in a table is compared with it. What was committed under one key more than
once (computed again after an eviction, or by two engines) may differ in its last bits, and any of those is
right: the service promises what *an* engine committed. Nothing here knows how blocks travel.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Counts", "Digests", "Memory"]

DIGEST_BYTES = 16

# Reads the first bytes of a frame: `memory(frame, size)`. Passed with every call and never kept, because a
# pool that was lost must be let go.
Memory = Callable[[int, int], memoryview]


@dataclass(slots=True)
class Counts:
    """`unknown`: came back without a digest of its commit, so nothing was proven of it."""

    verified: int = 0
    wrong: int = 0
    unknown: int = 0


class Digests:
    """Digests of blocks by key.

    `tell` is called with each batch of new ones before their commit is sent, so that whoever listens knows
    the digest of every block that the store may ever serve.
    """

    def __init__(self, block_bytes: int, tell: Callable[[Mapping[bytes, bytes]], None] | None = None) -> None:
        self.counts = Counts()
        self._block_bytes = block_bytes
        self._tell = tell
        self._known: dict[bytes, set[bytes]] = {}
        self._tails: dict[int, bytes] = {}

    def learn(self, digests: Iterable[tuple[bytes, bytes]]) -> None:
        """Takes over what an earlier engine has told: pairs of key and digest."""
        for key, digest in digests:
            self._known.setdefault(key, set()).add(digest)

    def note_commit(self, keys: Sequence[bytes], frames: Sequence[int], memory: Memory) -> None:
        taken = {key: self._digest(memory, frame) for key, frame in zip(keys, frames, strict=True)}
        new = {key: digest for key, digest in taken.items() if digest not in self._known.get(key, ())}
        self.learn(new.items())
        if new and self._tell is not None:
            self._tell(new)

    def compare(self, keys: Sequence[bytes], frames: Sequence[int], memory: Memory) -> None:
        """Committed blocks have come back in these frames."""
        for key, frame in zip(keys, frames, strict=True):
            known = self._known.get(key)
            if known is None:
                self.counts.unknown += 1
            else:
                self._count(self._digest(memory, frame) in known)

    def note_tail(self, sequence: int, frame: int, memory: Memory) -> None:
        """The part-filled last block of a sequence that is about to be swapped out."""
        self._tails[sequence] = self._digest(memory, frame)

    def compare_tail(self, sequence: int, frames: Sequence[int], memory: Memory) -> None:
        """The sequence is back; `frames` holds its part-filled last block if that came with it."""
        noted = self._tails.pop(sequence, None)
        if noted is not None and frames:
            self._count(self._digest(memory, frames[0]) == noted)

    def forget_tails(self) -> None:
        """The service was lost, and with it all that was swapped out."""
        self._tails.clear()

    def _count(self, is_same: bool) -> None:
        self.counts.verified += is_same
        self.counts.wrong += not is_same

    def _digest(self, memory: Memory, frame: int) -> bytes:
        return hashlib.sha256(memory(frame, self._block_bytes)).digest()[:DIGEST_BYTES]
