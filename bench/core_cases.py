"""What `bench.core` times: steps through `Store.handle`, on events that were made beforehand.

Each case is a call that measures one round and gives its median seconds. No work of the engine is in flight
unless a case says so: then what a step frees takes effect within that step.
"""

import gc
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

from bench.driven import BLOCK_TOKENS, BLOCKS, PROMPT_BLOCKS, Driven, random_keys
from kvstore.client.keys import block_keys
from kvstore.core.blocks import NO_ROWS
from kvstore.core.frames import Purpose, grant_frames
from kvstore.core.operations import Allocate, Commit, Grow, Operation
from kvstore.core.types import BlockKey, blocks_for_tokens

__all__ = ["BATCH", "CoreCases"]

BATCH = 256
MANY_BLOCKS = 300
SECONDS_PER_ROUND = 0.3


class CoreCases:
    """A store of its own for each round, so that no case finds what another has left."""

    def __init__(self, eviction: str = "lru") -> None:
        self.driven = Driven(eviction=eviction)
        # Collections stay on; but what stands by now lives on, and as in a server they don't walk it.
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    # ------------------------------------------------------------------- one prompt, 256 blocks

    def take_and_free(self) -> float:
        """Without keys: taken, and given back at once."""

        def once() -> float:
            sequence, allocate = self.driven.allocate(())
            return self.driven.seconds(allocate) + self.driven.seconds(self.driven.free(sequence))

        return _median(once)

    def take_and_free_rows(self) -> float:
        """The memory level alone: what a step calls for the blocks of all its operations together."""
        memory = self.driven.store.memory

        def once() -> float:
            start = perf_counter()
            rows = grant_frames(memory, NO_ROWS, BATCH, lambda: Purpose("a benchmark"))
            if rows is None:
                raise RuntimeError("no room")
            memory.blocks.give_up(rows)
            memory.release(rows, distinct=True)
            return perf_counter() - start

        return _median(once)

    def admit_uncached(self) -> float:
        return _median(lambda: self._admit(random_keys(PROMPT_BLOCKS), publishes=False))

    def admit_and_publish(self) -> float:
        """With the step that commits the blocks, which is the one in which they are published."""
        return _median(lambda: self._admit(random_keys(PROMPT_BLOCKS), publishes=True))

    def admit_evicting(self) -> float:
        """Where the whole pool is cache, so that 256 blocks have to go first."""
        for _ in range(BLOCKS // PROMPT_BLOCKS):
            self.driven.cache(random_keys(PROMPT_BLOCKS))
        return self.admit_and_publish()

    def _admit(self, keys: tuple[BlockKey, ...], publishes: bool) -> float:
        sequence, allocate = self.driven.allocate(keys)
        seconds = self.driven.seconds(allocate)
        if publishes:
            commit = Commit(sequence=sequence, first_block=0, block_keys=keys)
            seconds += self.driven.seconds(self.driven.step(commit))
        self.driven.seconds(self.driven.free(sequence))
        return seconds

    def admit_cached(self) -> float:
        keys = random_keys(PROMPT_BLOCKS)
        self.driven.cache(keys)
        return _median(lambda: self._admit(keys, publishes=False))

    def free_cached(self, in_flight: int = 0) -> float:
        """All but its last block stay as cache. In flight: with the empty step in which it takes effect."""
        keys = random_keys(PROMPT_BLOCKS)
        self.driven.cache(keys)

        def once() -> float:
            sequence, allocate = self.driven.allocate(keys)
            self.driven.seconds(allocate)
            seconds = self.driven.seconds(self.driven.free(sequence, in_flight=in_flight))
            for _ in range(in_flight):
                seconds += self.driven.seconds(self.driven.step())
            return seconds

        return _median(once)

    def empty_step(self) -> float:
        return _median(lambda: self.driven.seconds(self.driven.step()))

    # ------------------------------------------------------------------------ many sequences

    def step_growing(self) -> float:
        """256 run, and the 16 that cross a block ask for one: what the client sends."""
        return self._step(asks_all=False, publishes=False)

    def step_growing_in_columns(self) -> float:
        """The same 16 as one Grow."""
        return self._step(asks_all=False, publishes=False, columns=True)

    def step_growing_publishing(self) -> float:
        """And the blocks that they have filled are committed."""
        return self._step(asks_all=False, publishes=True)

    def step_asking(self) -> float:
        """256 run and all name what they need, though only 16 need a block."""
        return self._step(asks_all=True, publishes=False)

    def _step(self, *, asks_all: bool, publishes: bool, columns: bool = False) -> float:
        driven = self.driven
        lengths = {driven.new_sequence(): 512 + number % BLOCK_TOKENS for number in range(BATCH)}
        driven.seconds(
            driven.step(*(Allocate(sequence=each, token_count=_whole(n)) for each, n in lengths.items()))
        )
        samples: list[float] = []
        for number in range(128):
            operations: list[Operation] = []
            for sequence, length in lengths.items():
                known = blocks_for_tokens(length, BLOCK_TOKENS)
                full = length % BLOCK_TOKENS == 0
                if full and publishes:
                    # The first commit of each names all its blocks: those steps don't count.
                    count = known if number < BLOCK_TOKENS else 1
                    operations.append(
                        Commit(sequence=sequence, first_block=known - count, block_keys=random_keys(count))
                    )
                if full or asks_all:
                    operations.append(
                        Allocate(sequence=sequence, token_count=_whole(length + 1), known_blocks=known)
                    )
                lengths[sequence] = length + 1
            if columns:
                operations = [_in_columns(operations)]
            seconds = driven.seconds(driven.step(*operations))
            if number >= BLOCK_TOKENS:
                samples.append(seconds)
        driven.seconds(driven.free(*lengths))
        return median(samples)

    def free_many(self) -> float:
        return self._free_many(keyed=False)

    def free_many_cached(self) -> float:
        """Blocks that were committed, so that they stay as cache."""
        return self._free_many(keyed=True)

    def _free_many(self, *, keyed: bool) -> float:
        driven, samples = self.driven, []
        for _ in range(3):
            sequences = []
            for _ in range(BATCH):
                keys = random_keys(MANY_BLOCKS) if keyed else ()
                sequence, allocate = driven.allocate(keys, MANY_BLOCKS)
                driven.seconds(allocate)
                if keyed:
                    commit = Commit(sequence=sequence, first_block=0, block_keys=keys)
                    driven.seconds(driven.step(commit))
                sequences.append(sequence)
            samples.append(driven.seconds(driven.free(*sequences)))
        return median(samples)

    # ---------------------------------------------------------------------------------- keys

    def keys(self) -> float:
        """Of a prompt of 4,096 tokens in a list."""
        tokens = list(range(PROMPT_BLOCKS * BLOCK_TOKENS))

        def once() -> float:
            start = perf_counter()
            block_keys(tokens, BLOCK_TOKENS)
            return perf_counter() - start

        return _median(once)


def _whole(token_count: int) -> int:
    """Tokens of as many whole blocks."""
    return blocks_for_tokens(token_count, BLOCK_TOKENS) * BLOCK_TOKENS


def _median(once: Callable[[], float]) -> float:
    """The first tenth warms up."""
    samples: list[float] = []
    end = perf_counter() + SECONDS_PER_ROUND
    while len(samples) < 3 or perf_counter() < end:
        samples.append(once())
    return median(samples[len(samples) // 10 :])


def _in_columns(operations: Sequence[Operation]) -> Grow:
    allocates = [each for each in operations if isinstance(each, Allocate)]
    return Grow(
        sequences=tuple(each.sequence for each in allocates),
        token_counts=tuple(each.token_count for each in allocates),
        known_blocks=tuple(each.known_blocks for each in allocates),
    )
