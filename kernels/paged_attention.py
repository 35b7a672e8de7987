"""Attention of new tokens over a context that lies in frames, found through block tables.

Two shapes of work, each with its own function: *decode*, one new token for each of many sequences, and
*prefill*, a chunk of new tokens of one sequence after those already cached. Both expect the new tokens' own K
and V in the pool already (`store_kv` runs first), and both read one layer of the pool, `dtype[frames, 2,
block_tokens, kv_heads, head_dim]`, a strided view. Query head h reads KV head `h // (heads // kv_heads)`.
Scores are scaled by `head_dim ** -0.5`.

Slots past the end of a context hold whatever was there before, NaN included; they never reach a result.

The torch references; Triton kernels with the same contracts join them here. They gather the context into
contiguous memory once and let `scaled_dot_product_attention` do the rest.
Tests: tests/kernels/test_paged_attention.py.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["paged_decode_attention", "paged_prefill_attention"]


def paged_decode_attention(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    context_len_max: int,
) -> torch.Tensor:
    """One query for each sequence, over that sequence's whole context.

    query            dtype[sequences, heads, head_dim]
    block_tables     int32 or int64 [sequences, blocks]: frames in token order. Entries past a sequence's last
                     block are read and thrown away, so any frame number inside the pool will do (0 is one).
    context_lens     int64[sequences]: tokens of each context, the new one included; at least 1
    context_len_max  the largest of them, as a plain int so that a GPU need not be waited for
    Returns dtype[sequences, heads, head_dim].
    """
    sequences, heads, head_dim = query.shape
    kv_heads = kv_layer.shape[3]
    key, value = _gather(kv_layer, block_tables, context_len_max)

    beyond = torch.arange(context_len_max, device=query.device) >= context_lens[:, None]
    mask = torch.where(beyond, -torch.inf, 0.0).to(query.dtype)
    # NaN survives both a score of -inf and a weight of 0, so what lies beyond a context is wiped, not only
    # masked. By place, because a masked fill passes over everything to clear a little.
    places = beyond.nonzero(as_tuple=True)
    key[places] = 0
    value[places] = 0

    # The query heads that share a KV head become rows of one small matrix, so K and V are read only once.
    grouped = query.view(sequences, kv_heads, heads // kv_heads, head_dim)
    output = scaled_dot_product_attention(
        grouped, key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask[:, None, None]
    )
    return output.reshape(sequences, heads, head_dim)


def paged_prefill_attention(
    query: torch.Tensor, kv_layer: torch.Tensor, block_table: torch.Tensor, context_len: int
) -> torch.Tensor:
    """A chunk of one sequence's tokens over those before them and themselves, causally.

    query        dtype[tokens, heads, head_dim]: the last `tokens` tokens of the context, in order
    block_table  int32 or int64 [blocks]: the sequence's frames in token order; none past the context is read
    context_len  tokens of the context, the chunk included
    Returns dtype[tokens, heads, head_dim].
    """
    tokens, heads, head_dim = query.shape
    kv_heads = kv_layer.shape[3]
    group = heads // kv_heads
    key, value = _gather(kv_layer, block_table[None], context_len)

    # KV heads stand where a batch would, and expand (no copy) over the query heads that share them.
    output = scaled_dot_product_attention(
        query.view(tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3),
        key[0].transpose(0, 1)[:, None].expand(kv_heads, group, context_len, head_dim),
        value[0].transpose(0, 1)[:, None].expand(kv_heads, group, context_len, head_dim),
        attn_mask=None if tokens == context_len else _causal_mask(tokens, context_len, query),
        is_causal=tokens == context_len,
    )
    return output.permute(2, 0, 1, 3).reshape(tokens, heads, head_dim)


def _gather(
    kv_layer: torch.Tensor, block_tables: torch.Tensor, tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy contexts out of their frames: K and V, each dtype[sequences, tokens, kv_heads, head_dim]."""
    _, _, block_tokens, kv_heads, head_dim = kv_layer.shape
    sequences = block_tables.shape[0]
    frames = block_tables[:, : -(-tokens // block_tokens)].flatten()
    key, value = (
        kv_layer[:, side].index_select(0, frames).view(sequences, -1, kv_heads, head_dim)[:, :tokens]
        for side in (0, 1)
    )
    return key, value


def _causal_mask(tokens: int, context_len: int, like: torch.Tensor) -> torch.Tensor:
    """What to add to the scores of the last `tokens` tokens of a context: [tokens, context_len], 0 or -inf.

    As numbers and not as booleans, which the CPU's attention would turn into numbers for every head anew.
    """
    mask = torch.full((tokens, context_len), -torch.inf, dtype=like.dtype, device=like.device)
    return mask.triu_(context_len - tokens + 1)
