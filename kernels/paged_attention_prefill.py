"""Attention of chunks of new tokens of many sequences, over cached tokens and themselves, causally.

The reference computes one sequence after the other: it gathers the context into contiguous memory once and
lets `scaled_dot_product_attention` do the rest. In the kernel the rows of a program are tokens and the query
heads of one KV head, tokens first, so a tile of K and V is read once for all of them. Tests:
tests/kernels/test_paged_attention_prefill.py.
"""

from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention_tiles import attend_tiles, score_scale, tiles_for
from kernels.checks import INDEX_TYPES, check_attention, check_int, check_lens, check_tensor, refuse
from kernels.gathering import gather_context, make_room
from kernels.launch import Launch, runs_kernel

__all__ = ["paged_attention_prefill", "paged_attention_prefill_reference", "plan_paged_attention_prefill"]

NAME = "paged_attention_prefill"
# Rows of one program.
ROWS_MAX = 64


def paged_attention_prefill(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    query_len_max: int,
) -> torch.Tensor:
    """The last tokens of each sequence over its whole context; each sees those before it and itself.

    query          dtype[tokens, heads, head_dim]: the sequences' new tokens one after the other, in token
                   order. Head h reads KV head `h // (heads // kv_heads)`.
    kv_layer       dtype[frames, 2, block_tokens, kv_heads, head_dim]: one layer of the pool, a strided view
                   whose three last axes are contiguous. The new tokens' own K and V are there already.
    block_tables   int32 or int64 [sequences, blocks]: frames in token order. Entries past a sequence's last
                   block may be any frame number inside the pool (0 is one).
    query_starts   int32 or int64 [sequences + 1]: where each sequence's tokens begin in `query`; the last is
                   `tokens`. A sequence may have none.
    context_lens   int32 or int64 [sequences]: tokens of each context, the new ones included
    query_len_max  at least the most new tokens of a sequence, as a plain int so that a GPU need not be waited
                   for; the grid follows from it
    Returns dtype[tokens, heads, head_dim]. Scores are scaled by `head_dim ** -0.5`. Slots past the end of a
    context hold whatever was there before, NaN included; they never reach a result.
    Raises KernelArgumentError.
    """
    _check(query, kv_layer, block_tables, query_starts, context_lens, query_len_max)
    if not runs_kernel(kv_layer.device):
        return paged_attention_prefill_reference(query, kv_layer, block_tables, query_starts, context_lens)
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    plan_paged_attention_prefill(
        output, query, kv_layer, block_tables, query_starts, context_lens, query_len_max
    ).run()
    return output


def paged_attention_prefill_reference(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
) -> torch.Tensor:
    """The same in torch."""
    chunks = query.split(query_starts.diff().tolist())
    lens = context_lens.tolist()
    room = make_room(kv_layer, 1, max(lens, default=0))
    outputs = [
        _attend_one(chunk, kv_layer, table, length, room)
        for chunk, table, length in zip(chunks, block_tables, lens, strict=True)
        if len(chunk)
    ]
    return torch.cat(outputs) if outputs else torch.empty_like(query)


def _attend_one(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_table: torch.Tensor,
    context_len: int,
    room: torch.Tensor,
) -> torch.Tensor:
    """One sequence's new tokens, dtype[tokens, heads, head_dim], over its context of `context_len` tokens."""
    tokens, heads, head_dim = query.shape
    kv_heads = kv_layer.shape[3]
    group = heads // kv_heads
    key, value = gather_context(kv_layer, block_table[None], context_len, room)

    # KV heads stand where a batch would, and expand (no copy) over the query heads that share them.
    output = scaled_dot_product_attention(
        query.reshape(tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3),
        key[0].transpose(0, 1)[:, None].expand(kv_heads, group, context_len, head_dim),
        value[0].transpose(0, 1)[:, None].expand(kv_heads, group, context_len, head_dim),
        attn_mask=None if tokens == context_len else _causal_mask(tokens, context_len, query),
        is_causal=tokens == context_len,
    )
    return output.permute(2, 0, 1, 3).reshape(tokens, heads, head_dim)


def _causal_mask(tokens: int, context_len: int, like: torch.Tensor) -> torch.Tensor:
    """What to add to the scores of the last `tokens` tokens of a context: [tokens, context_len], 0 or -inf.

    As numbers and not as booleans, which the CPU's attention would turn into numbers for every head anew.
    """
    mask = torch.full((tokens, context_len), -torch.inf, dtype=like.dtype, device=like.device)
    return mask.triu_(context_len - tokens + 1)


def plan_paged_attention_prefill(
    output: torch.Tensor,
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    query_len_max: int,
) -> Launch:
    """Programs by rows, sequence and KV head; those beyond a sequence's new tokens end at once."""
    kv_heads, head_dim = kv_layer.shape[3:]
    group = query.shape[1] // kv_heads
    rows = query_len_max * group
    tiles = tiles_for(kv_layer, rows, ROWS_MAX)
    return Launch(
        kernel=_attend,
        # Rows first: of the others there are never more than the 65,535 that a GPU takes. And programs that
        # run side by side read the same context.
        grid=(-(-rows // tiles.rows), len(context_lens), kv_heads),
        arguments={
            "output_ptr": output,
            "query_ptr": query,
            "kv_ptr": kv_layer,
            "tables_ptr": block_tables,
            "starts_ptr": query_starts,
            "lens_ptr": context_lens,
            "scale": score_scale(head_dim),
            "stride_query": query.stride(0),
            "stride_query_head": query.stride(1),
            "stride_frame": kv_layer.stride(0),
            "stride_side": kv_layer.stride(1),
            "stride_table": block_tables.stride(0),
        },
        constants=tiles.constants(kv_layer, group) | {"KV_HEADS": kv_heads},
        warps=tiles.warps,
    )


@triton.jit
def _attend(
    output_ptr,
    query_ptr,
    kv_ptr,
    tables_ptr,
    starts_ptr,
    lens_ptr,
    scale,
    stride_query,
    stride_query_head,
    stride_frame,
    stride_side,
    stride_table,
    GROUP: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDENED: tl.constexpr,
    KV_HEADS: tl.constexpr,
):
    sequence = tl.program_id(1).to(tl.int64)
    kv_head = tl.program_id(2)
    start = tl.load(starts_ptr + sequence).to(tl.int64)
    query_len = (tl.load(starts_ptr + sequence + 1) - start).to(tl.int32)
    first_row = tl.program_id(0) * ROWS
    if first_row >= query_len * GROUP:
        return
    cached = tl.load(lens_ptr + sequence).to(tl.int32) - query_len

    rows = first_row + tl.arange(0, ROWS)
    tokens = rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    dims = tl.arange(0, DIM)
    is_there = (tokens[:, None] < query_len) & (dims[None, :] < HEAD_DIM)
    query_places = (start + tokens)[:, None] * stride_query + heads[:, None] * stride_query_head
    query = tl.load(query_ptr + query_places + dims[None, :], mask=is_there, other=0.0)
    # Rows behind the last token see what it sees, and are not stored.
    last = cached + tl.minimum(tokens, query_len - 1)
    output, _, weight_sum = attend_tiles(
        query,
        kv_ptr + kv_head * HEAD_DIM,
        tables_ptr + sequence * stride_table,
        0,
        cached + tl.minimum((first_row + ROWS - 1) // GROUP, query_len - 1) + 1,
        last,
        scale,
        stride_frame,
        stride_side,
        KV_HEADS * HEAD_DIM,
        BLOCK_TOKENS,
        HEAD_DIM,
        DIM,
        ROWS,
        TILE,
        PRECISION,
        WIDENED,
    )
    output_places = (start + tokens)[:, None] * (GROUP * KV_HEADS) + heads[:, None]
    output_places = output_ptr + output_places * HEAD_DIM + dims[None, :]
    tl.store(output_places, (output / weight_sum[:, None]).to(output_ptr.dtype.element_ty), mask=is_there)


def _check(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    query_len_max: int,
) -> None:
    check_attention(NAME, query, kv_layer, block_tables, context_lens)
    check_tensor(
        NAME,
        "query_starts",
        query_starts,
        shape=(len(block_tables) + 1,),
        dtypes=INDEX_TYPES,
        device=kv_layer.device,
        dense_axes=1,
    )
    check_int(NAME, "query_len_max", query_len_max)
    if not 0 <= query_len_max <= len(query):
        raise refuse(
            NAME,
            "query_len_max",
            query_len_max,
            f"from 0 to the {len(query)} tokens of query",
            "the most tokens of one sequence",
        )
    if not runs_kernel(kv_layer.device):
        starts = query_starts.tolist()
        if starts[0] != 0 or starts[-1] != len(query):
            wanted = f"from 0 to the {len(query)} tokens of query"
            raise refuse(NAME, "query_starts", f"from {starts[0]} to {starts[-1]}", wanted, "check both")
        new = [end - start for start, end in pairwise(starts)]
        check_lens(NAME, "query_starts' length", new, [0] * len(new), query_len_max)
        room = block_tables.shape[1] * kv_layer.shape[2]
        check_lens(NAME, "context_lens", context_lens.tolist(), new, room)
