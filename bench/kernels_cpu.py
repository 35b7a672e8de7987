"""The CPU's attention, a whole decode step and a prefill, beside what torch and `transformers` take.

In CPU time of one thread, which the work of others disturbs less than the time on the wall. Torch's attention
reads K and V that lie contiguous, head by head, with the query heads of a KV head as rows of one matrix: the
fastest form that it has. What kvstore adds is to read frames, and to write what it gathers.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from bench.reference_transformers import to_transformers
from bench.report import Row, make_row
from engine.batch import Batch
from engine.model import Llama
from engine.models import load_model_weights
from engine.requests import chunk_end
from engine.weights import Weights
from kernels.layout import KVLayout
from kernels.paged_attention_decode import paged_attention_decode

__all__ = ["attention_rows", "step_rows"]

SEQUENCES, CONTEXT_TOKENS, BLOCK_TOKENS = 8, 2048, 16
# SmolLM2's.
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64
RATIO_MAX = {torch.float32: 2.2, torch.bfloat16: 2.8}
STEP_RATIO_MAX = 1.3
PREFILL_TOKENS = 512


@torch.inference_mode()
def attention_rows(rounds: int) -> Iterator[Row]:
    """Decode over 8 sequences of 2,048 tokens, one layer."""
    torch.set_num_threads(1)
    for dtype, ratio_max in RATIO_MAX.items():
        kv_layer, tables = _draw_layer(dtype)
        lens = torch.full((SEQUENCES,), CONTEXT_TOKENS)
        query = torch.randn(SEQUENCES, HEADS, HEAD_DIM).to(dtype)
        grouped = query.view(SEQUENCES, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
        key, value = torch.randn(2, SEQUENCES, KV_HEADS, CONTEXT_TOKENS, HEAD_DIM).to(dtype)
        ours, theirs = _in_turns(
            lambda: paged_attention_decode(query, kv_layer, tables, lens, CONTEXT_TOKENS),  # noqa: B023
            lambda: scaled_dot_product_attention(grouped, key, value),  # noqa: B023
            rounds,
        )
        name = str(dtype).removeprefix("torch.")
        yield make_row(
            f"decode of 8 sequences of 2,048 tokens, {name} [torch's attention, contiguous]",
            "ms",
            ours,
            reference=theirs,
            ratio_at_most=ratio_max,
        )


@torch.inference_mode()
def step_rows(rounds: int) -> Iterator[Row]:
    """A decode step of SmolLM2, 8 sequences of 2,048 tokens: the whole forward pass. And a prompt, in the
    engine's chunks and as a whole."""
    torch.set_num_threads(1)
    weights = load_model_weights("smollm2")
    ours, theirs = _in_turns(_our_step(weights), _their_step(weights), rounds)
    yield make_row(
        "decode step of SmolLM2, 8 sequences of 2,048 tokens, float32 [transformers]",
        "ms",
        ours,
        reference=theirs,
        ratio_at_most=STEP_RATIO_MAX,
    )
    ours, theirs = _in_turns(_our_prefill(weights), _their_prefill(weights), rounds)
    yield make_row(
        f"prefill of {PREFILL_TOKENS} tokens by SmolLM2, float32 [transformers]",
        "ms",
        ours,
        reference=theirs,
        ratio_at_most=STEP_RATIO_MAX,
    )


def _our_step(weights: Weights) -> Callable[[], object]:
    model = Llama(weights)
    layout = weights.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=weights.dtype)
    blocks = CONTEXT_TOKENS // BLOCK_TOKENS
    pool = layout.view(np.zeros((SEQUENCES * blocks, layout.frame_stride_bytes), np.uint8))
    pool.normal_()
    batch = Batch.decode(
        np.arange(SEQUENCES),
        context_lens=np.full(SEQUENCES, CONTEXT_TOKENS),
        block_tables=np.random.default_rng(0).permutation(SEQUENCES * blocks).reshape(SEQUENCES, blocks),
        block_tokens=BLOCK_TOKENS,
    )
    return lambda: model.forward(batch, pool)


def _their_step(weights: Weights) -> Callable[[], object]:
    """As `generate` does it, with the cache that it makes by itself."""
    # Seconds to import, for this alone.
    from transformers import DynamicCache  # noqa: PLC0415

    model, config = to_transformers(weights), weights.config
    cache, before = DynamicCache(), CONTEXT_TOKENS - 1
    shape = (SEQUENCES, config.kv_heads, before, config.head_dim)
    for layer in range(config.layers):
        cache.update(torch.randn(shape), torch.randn(shape), layer)
    ids = torch.arange(SEQUENCES)[:, None]

    def step() -> None:
        model(ids, cache=cache, use_cache=True)
        cache.crop(-1)

    return step


def _our_prefill(weights: Weights) -> Callable[[], object]:
    model = Llama(weights)
    layout = weights.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=weights.dtype)
    blocks = PREFILL_TOKENS // BLOCK_TOKENS
    pool = layout.view(np.zeros((blocks, layout.frame_stride_bytes), np.uint8))
    table = np.random.default_rng(0).permutation(blocks)
    batches, begin = [], 0
    while begin < PREFILL_TOKENS:
        end = chunk_end(begin, PREFILL_TOKENS)
        chunk = np.arange(begin, end)
        batches.append(Batch.prefill(chunk, cached=begin, block_table=table, block_tokens=BLOCK_TOKENS))
        begin = end
    return lambda: [model.forward(batch, pool) for batch in batches]


def _their_prefill(weights: Weights) -> Callable[[], object]:
    """As `generate` does it: all tokens at once, and the logits of the last."""
    # Seconds to import, for this alone.
    from transformers import DynamicCache  # noqa: PLC0415

    model = to_transformers(weights)
    ids = torch.arange(PREFILL_TOKENS)[None]
    return lambda: model(ids, cache=DynamicCache(), use_cache=True, logits_to_keep=1)


def _draw_layer(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer of a pool that has SmolLM2's strides, and tables of scattered frames."""
    layout = KVLayout(layers=30, kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_tokens=BLOCK_TOKENS, dtype=dtype)
    frames = SEQUENCES * CONTEXT_TOKENS // BLOCK_TOKENS
    memory = torch.zeros(frames, layout.frame_stride_bytes, dtype=torch.uint8)
    kv_layer = layout.view(memory)[:, 3]
    kv_layer.copy_(torch.randn(kv_layer.shape))
    return kv_layer, torch.randperm(frames).view(SEQUENCES, -1)


def _in_turns(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int
) -> tuple[list[float], list[float]]:
    """Milliseconds of each call; a first round of both is for caches to fill and is not counted."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for call, samples in zip((ours, theirs), taken, strict=True):
            begin = time.process_time()
            call()
            samples.append(1e3 * (time.process_time() - begin))
    return taken[0][1:], taken[1][1:]
