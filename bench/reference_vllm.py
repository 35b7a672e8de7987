"""The allocator inside vLLM, case by case: what an engine calls, on requests made beforehand.

With the defaults: SHA-256 over pickled tokens as block hash, one group of full attention; with
`delay_cache_blocks` where the case is about finding and taking blocks only, and with their publication where
its name says so.
"""

from functools import partial
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

from bench.reference_rounds import BATCH, BLOCK_TOKENS, BLOCKS, PROMPT_TOKENS, Case, median_of

__all__ = ["Vllm"]


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

        return median_of(once)

    def _admit(self, publishes: bool) -> float:
        def once() -> float:
            request = self._fresh()
            start = perf_counter()
            self._enter(request, publishes)
            seconds = perf_counter() - start
            self._manager.free(request)
            return seconds

        return median_of(once)

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

        return median_of(once), median(frees)

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

        return median_of(once)
