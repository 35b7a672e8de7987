"""The allocator inside nano-vllm, case by case: what an engine calls, on requests made beforehand.

It hashes inside `allocate`, and publishes there too: its cases hold more than vLLM's.
"""

import importlib.util
import sys
import types
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

from bench.reference_rounds import BATCH, BLOCK_TOKENS, BLOCKS, PROMPT_TOKENS, Case, median_of

__all__ = ["NanoVllm"]


class NanoVllm:
    def __init__(self) -> None:
        # Without its package's __init__, which loads GPU kernels.
        package = types.ModuleType("nanovllm")
        spec = importlib.util.find_spec("nanovllm")
        if spec is None or spec.submodule_search_locations is None:
            raise ImportError("nanovllm is not installed")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["nanovllm"] = package
        from nanovllm.engine.block_manager import BlockManager  # noqa: PLC0415
        from nanovllm.engine.sequence import Sequence  # noqa: PLC0415

        Sequence.block_size = BLOCK_TOKENS
        self._manager, self._sequence = BlockManager(BLOCKS, BLOCK_TOKENS), Sequence
        self._numbers = count(1)

    def cases(self) -> dict[str, Case]:
        return {
            "nano-vllm take and free": self._take_and_free,
            "nano-vllm admit, nothing cached": lambda: self._admit()[0],
            "nano-vllm admit, all cached": self._admit_cached,
            "nano-vllm free": lambda: self._admit()[1],
            "nano-vllm step": self._step,
            "nano-vllm free many": self._free_many,
        }

    def _fresh(self, tokens: int = PROMPT_TOKENS) -> Any:
        first = next(self._numbers) * 100_000
        return self._sequence(list(range(first, first + tokens)))

    def _take_and_free(self) -> float:
        manager = self._manager

        def once() -> float:
            start = perf_counter()
            ids = []
            for _ in range(BATCH):
                ids.append(manager.free_block_ids[0])
                manager._allocate_block(ids[-1])  # noqa: SLF001  # there is no public call
            for id_ in reversed(ids):
                manager.blocks[id_].ref_count -= 1
                manager._deallocate_block(id_)  # noqa: SLF001
            return perf_counter() - start

        return median_of(once)

    def _admit(self) -> tuple[float, float]:
        frees = []

        def once() -> float:
            sequence = self._fresh()
            start = perf_counter()
            if self._manager.can_allocate(sequence):
                self._manager.allocate(sequence)
            seconds = perf_counter() - start
            start = perf_counter()
            self._manager.deallocate(sequence)
            frees.append(perf_counter() - start)
            return seconds

        return median_of(once), median(frees)

    def _admit_cached(self) -> float:
        # This one forgets what nobody holds.
        first = self._fresh()
        self._manager.allocate(first)

        def once() -> float:
            sequence = self._sequence(first.token_ids)
            start = perf_counter()
            if self._manager.can_allocate(sequence):
                self._manager.allocate(sequence)
            seconds = perf_counter() - start
            self._manager.deallocate(sequence)
            return seconds

        seconds = median_of(once)
        self._manager.deallocate(first)
        return seconds

    def _step(self) -> float:
        crowd = [self._fresh(512 + number % BLOCK_TOKENS) for number in range(BATCH)]
        for sequence in crowd:
            self._manager.allocate(sequence)

        def once() -> float:
            for sequence in crowd:
                sequence.append_token(7)
            start = perf_counter()
            for sequence in crowd:
                if self._manager.can_append(sequence):
                    self._manager.may_append(sequence)
            return perf_counter() - start

        seconds = median(once() for _ in range(128))
        for sequence in crowd:
            self._manager.deallocate(sequence)
        return seconds

    def _free_many(self) -> float:
        def once() -> float:
            sequences = [self._fresh(300 * BLOCK_TOKENS) for _ in range(BATCH)]
            for sequence in sequences:
                self._manager.allocate(sequence)
            start = perf_counter()
            for sequence in sequences:
                self._manager.deallocate(sequence)
            return perf_counter() - start

        return once()
