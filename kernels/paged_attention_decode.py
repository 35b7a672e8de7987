"""Attention of one new token for each of many sequences, over contexts that lie in frames.

The reference gathers the contexts into contiguous memory once and lets `scaled_dot_product_attention` do the
rest. The kernel reads them where they are. One program has the query heads of one KV head, so each K and V is
read once; a context is split between several programs where sequences and heads alone are too few for a GPU,
and merged after that (`kernels/attention_splits.py`).
Tests: tests/kernels/test_paged_attention_decode.py.
"""

import torch
import triton
import triton.language as tl
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention_splits import make_parts, plan_merge, splits_for, tokens_of_split
from kernels.attention_tiles import attend_tiles, score_scale, tiles_for
from kernels.checks import INDEX_TYPES, check_kv_layer, check_tensor, refuse
from kernels.gathering import gather_context
from kernels.launch import Launch, runs_kernel

__all__ = ["paged_attention_decode", "paged_attention_decode_reference", "plan_paged_attention_decode"]

NAME = "paged_attention_decode"
# Query heads of a KV head in one program; a larger group is shared between several.
ROWS_MAX = 64


def paged_attention_decode(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    context_len_max: int,
) -> torch.Tensor:
    """One query for each sequence, over that sequence's whole context.

    query            dtype[sequences, heads, head_dim]. Head h reads KV head `h // (heads // kv_heads)`.
    kv_layer         dtype[frames, 2, block_tokens, kv_heads, head_dim]: one layer of the pool, a strided view
                     whose three last axes are contiguous. The new tokens' own K and V are there already.
    block_tables     int32 or int64 [sequences, blocks]: frames in token order. Entries past a sequence's last
                     block may be any frame number inside the pool (0 is one).
    context_lens     int32 or int64 [sequences]: tokens of each context, the new one included. 0 is a row that
                     only fills up a batch of fixed size: its output is 0.
    context_len_max  at least the largest of them, as a plain int so that a GPU need not be waited for
    Returns dtype[sequences, heads, head_dim]. Scores are scaled by `head_dim ** -0.5`. Slots past the end of
    a context hold whatever was there before, NaN included; they never reach a result. Raises
    KernelArgumentError.
    """
    _check(query, kv_layer, block_tables, context_lens, context_len_max)
    if not runs_kernel(kv_layer.device):
        return paged_attention_decode_reference(query, kv_layer, block_tables, context_lens, context_len_max)
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    launches = plan_paged_attention_decode(
        output, query, kv_layer, block_tables, context_lens, context_len_max
    )
    for launch in launches:
        launch.run()
    return output


def paged_attention_decode_reference(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    context_len_max: int,
) -> torch.Tensor:
    """The same in torch."""
    sequences, heads, head_dim = query.shape
    kv_heads = kv_layer.shape[3]
    key, value = gather_context(kv_layer, block_tables, context_len_max)

    beyond = torch.arange(context_len_max, device=query.device) >= context_lens[:, None]
    mask = torch.where(beyond, -torch.inf, 0.0).to(query.dtype)
    # NaN survives both a score of -inf and a weight of 0, so what lies beyond a context is wiped, not only
    # masked. By place, because a masked fill passes over everything to clear a little.
    places = beyond.nonzero(as_tuple=True)
    key[places] = 0
    value[places] = 0

    # The query heads that share a KV head become rows of one small matrix, so K and V are read only once.
    grouped = query.reshape(sequences, kv_heads, heads // kv_heads, head_dim)
    output = scaled_dot_product_attention(
        grouped, key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask[:, None, None]
    )
    output = output.reshape(sequences, heads, head_dim)
    is_empty = context_lens == 0
    return output.masked_fill_(is_empty[:, None, None], 0) if is_empty.any() else output


def plan_paged_attention_decode(
    output: torch.Tensor,
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    context_len_max: int,
) -> tuple[Launch, ...]:
    """One launch, or where contexts are split a second one that merges."""
    sequences, heads, head_dim = query.shape
    kv_heads = kv_layer.shape[3]
    group = heads // kv_heads
    tiles = tiles_for(kv_layer, group, ROWS_MAX)
    chunks = -(-group // tiles.rows)
    splits = splits_for(sequences * kv_heads * chunks, context_len_max)
    found, weight = make_parts(query, splits)
    attend = Launch(
        kernel=_attend,
        grid=(sequences, kv_heads * chunks, splits),
        arguments={
            "output_ptr": output,
            "found_ptr": found,
            "weight_ptr": weight,
            "query_ptr": query,
            "kv_ptr": kv_layer,
            "tables_ptr": block_tables,
            "lens_ptr": context_lens,
            "scale": score_scale(head_dim),
            "stride_query": query.stride(0),
            "stride_query_head": query.stride(1),
            "stride_frame": kv_layer.stride(0),
            "stride_side": kv_layer.stride(1),
            "stride_table": block_tables.stride(0),
        },
        constants=tiles.constants(kv_layer, group)
        | {"KV_HEADS": kv_heads, "CHUNKS": chunks, "SPLITS": splits},
        warps=tiles.warps,
    )
    return (attend,) if splits == 1 else (attend, plan_merge(output, found, weight, context_lens, splits))


@triton.jit
def _attend(
    output_ptr,
    found_ptr,
    weight_ptr,
    query_ptr,
    kv_ptr,
    tables_ptr,
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
    CHUNKS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1) // CHUNKS
    split = tl.program_id(2)
    length = tl.load(lens_ptr + sequence).to(tl.int32)
    split_tokens = tokens_of_split(length, SPLITS)
    begin = split * split_tokens
    if begin >= length and split > 0:
        return
    end = tl.minimum(begin + split_tokens, length)

    rows = (tl.program_id(1) % CHUNKS) * ROWS + tl.arange(0, ROWS)
    heads = kv_head * GROUP + rows
    dims = tl.arange(0, DIM)
    is_there = (rows[:, None] < GROUP) & (dims[None, :] < HEAD_DIM)
    query_places = query_ptr + sequence * stride_query + heads[:, None] * stride_query_head + dims[None, :]
    query = tl.load(query_places, mask=is_there, other=0.0)
    output, score_max, weight_sum = attend_tiles(
        query,
        kv_ptr + kv_head * HEAD_DIM,
        tables_ptr + sequence * stride_table,
        begin,
        end,
        tl.zeros([ROWS], tl.int32) + end - 1,
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
    # A context of no tokens has no weights: its output is 0.
    output = output / tl.where(weight_sum > 0, weight_sum, 1.0)[:, None]
    outputs = sequence * (GROUP * KV_HEADS) + heads
    if SPLITS == 1:
        places = output_ptr + outputs[:, None] * HEAD_DIM + dims[None, :]
        tl.store(places, output.to(output_ptr.dtype.element_ty), mask=is_there)
    else:
        parts = outputs * SPLITS + split
        tl.store(found_ptr + parts[:, None] * HEAD_DIM + dims[None, :], output, mask=is_there)
        tl.store(weight_ptr + parts, score_max + tl.log2(weight_sum), mask=rows < GROUP)


def _check(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    context_len_max: int,
) -> None:
    check_kv_layer(NAME, kv_layer)
    _, _, block_tokens, kv_heads, head_dim = kv_layer.shape
    device, dtypes = kv_layer.device, (kv_layer.dtype,)
    check_tensor(
        NAME, "query", query, shape=(None, None, head_dim), dtypes=dtypes, device=device, dense_axes=1
    )
    sequences, heads, _ = query.shape
    if heads % kv_heads:
        raise refuse(NAME, "query", f"of {heads} heads", f"a multiple of {kv_heads} KV heads", "check both")
    check_tensor(
        NAME,
        "block_tables",
        block_tables,
        shape=(sequences, None),
        dtypes=INDEX_TYPES,
        device=device,
        dense_axes=1,
    )
    check_tensor(
        NAME,
        "context_lens",
        context_lens,
        shape=(sequences,),
        dtypes=INDEX_TYPES,
        device=device,
        dense_axes=1,
    )
    room = block_tables.shape[1] * block_tokens
    if not 0 <= context_len_max <= room:
        raise refuse(
            NAME,
            "context_len_max",
            context_len_max,
            f"from 0 to the {room} tokens that block_tables has frames for",
            "pass wider block tables, or the true maximum",
        )
