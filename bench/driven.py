"""A store that is driven by one engine, with no service around it."""

import os
from collections.abc import Sequence
from time import perf_counter

from kvstore.core.answers import StepAnswer
from kvstore.core.calls import Attach, Step
from kvstore.core.config import StoreConfig
from kvstore.core.operations import Allocate, AllocateResult, Commit, Free, Operation
from kvstore.core.store import Store
from kvstore.core.types import (
    BlockKey,
    EngineId,
    NamespaceId,
    Outcome,
    SequenceId,
    SequenceState,
    StepNumber,
    WriterId,
)
from kvstore.policy.choices import make_eviction
from kvstore.policy.swap import LengthThreshold

__all__ = ["BLOCKS", "BLOCK_TOKENS", "PROMPT_BLOCKS", "Driven", "random_keys"]

BLOCK_TOKENS = 16
PROMPT_BLOCKS = 256
BLOCKS = 131_072
ENGINE = EngineId("00000000-0000-4000-8000-000000000001")


class Driven:
    """A store with one engine, whose steps are numbered as they are made."""

    def __init__(self, gpu_frames: int = BLOCKS, eviction: str = "lru") -> None:
        config = StoreConfig(block_tokens=BLOCK_TOKENS, gpu_frames=gpu_frames)
        self.store = Store(config, make_eviction(eviction, config.frames), LengthThreshold(8 * BLOCK_TOKENS))
        self._last_step = 0
        self._last_sequence = 0
        attach = Attach(
            time=0.0,
            engine=ENGINE,
            request_id="bench",
            namespace=NamespaceId(1),
            writer=WriterId(1),
            build="",
            lease_seconds=10.0,
        )
        self.store.handle(attach)

    def new_sequence(self) -> SequenceId:
        self._last_sequence += 1
        return SequenceId(self._last_sequence)

    def step(self, *operations: Operation, in_flight: int = 0) -> Step:
        """The next one, to be handled in the order in which they were made."""
        self._last_step += 1
        return Step(
            time=1.0,
            engine=ENGINE,
            step=StepNumber(self._last_step),
            completed_step=StepNumber(max(0, self._last_step - 1 - in_flight)),
            operations=operations,
        )

    def seconds(self, step: Step) -> float:
        """Of one step that finds all the memory it asks for."""
        start = perf_counter()
        effects = self.store.handle(step)
        seconds = perf_counter() - start
        if not isinstance(effects.answer, StepAnswer):
            raise TypeError(effects.answer)
        for result in effects.answer.results:
            if isinstance(result, AllocateResult) and (
                (result.outcome, result.state) != (Outcome.OK, SequenceState.RESIDENT)
            ):
                raise RuntimeError(f"no room: {result}")
        return seconds

    def allocate(self, keys: Sequence[BlockKey], blocks: int = PROMPT_BLOCKS) -> tuple[SequenceId, Step]:
        sequence = self.new_sequence()
        tokens = blocks * BLOCK_TOKENS
        return sequence, self.step(Allocate(sequence=sequence, token_count=tokens, block_keys=tuple(keys)))

    def free(self, *sequences: SequenceId, in_flight: int = 0) -> Step:
        return self.step(Free(sequences=sequences), in_flight=in_flight)

    def cache(self, keys: Sequence[BlockKey]) -> None:
        """Blocks under these keys, computed, published and given up."""
        sequence, allocate = self.allocate(keys, len(keys))
        self.seconds(allocate)
        self.seconds(self.step(Commit(sequence=sequence, first_block=0, block_keys=tuple(keys))))
        self.seconds(self.free(sequence))


def random_keys(count: int) -> tuple[BlockKey, ...]:
    data = os.urandom(32 * count)
    return tuple(BlockKey(data[start : start + 32]) for start in range(0, len(data), 32))
