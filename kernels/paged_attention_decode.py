"""Attention of one new token for each of many sequences, over contexts that lie in frames.

The reference gathers contexts into contiguous memory and lets `scaled_dot_product_attention` do the rest.
The kernel reads them where they are. One program has the query heads of one KV head, so each K and V is read
once; a context is split between several programs where sequences and heads alone are too few for a GPU, and
merged after that (`kernels/attention_splits.py`). Tests: tests/kernels/test_paged_attention_decode.py.
"""

import torch
import triton
import triton.language as tl
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention_splits import make_parts, plan_merge, splits_for, tokens_of_split
from kernels.attention_tiles import attend_tiles, score_scale, tiles_for
from kernels.checks import check_attention, refuse
from kernels.gathering import gather_context, make_room
from kernels.launch import Launch, runs_kernel

__all__ = ["paged_attention_decode", "paged_attention_decode_reference", "plan_paged_attention_decode"]

NAME = "paged_attention_decode"
# Of K and of V each, what the reference gathers before it reads it again.
GATHERED_BYTES = 1 << 20
# Frames with so many bytes of K are read where they are, context by context, where each lies in one frame.
READ_BYTES = 1 << 16
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
    """The same in torch: so many sequences at once as what is gathered of them stays in a core's cache. What
    lies in a large frame each is not gathered, and computed one by one."""
    lens = context_lens.tolist()
    row_bytes = context_len_max * kv_layer.shape[3] * kv_layer.shape[4] * kv_layer.dtype.itemsize
    frame_bytes = kv_layer[0, 0].nbytes if len(kv_layer) else 0
    is_read = context_len_max <= kv_layer.shape[2] and frame_bytes >= READ_BYTES
    at_once = 1 if is_read else min(len(lens), max(1, GATHERED_BYTES // max(row_bytes, 1)))
    room = make_room(kv_layer, at_once, context_len_max)
    parts = (slice(row, row + at_once) for row in range(0, len(lens), max(at_once, 1)))
    outputs = [_attend_some(query[part], kv_layer, block_tables[part], lens[part], room) for part in parts]
    return torch.cat(outputs) if outputs else torch.empty_like(query)


def _attend_some(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    lens: list[int],
    room: torch.Tensor,
) -> torch.Tensor:
    """Some sequences whose contexts have `lens` tokens, dtype[sequences, heads, head_dim]."""
    sequences, heads, head_dim = query.shape
    kv_heads = kv_layer.shape[3]
    longest = max(lens)
    if longest == 0:
        return torch.zeros_like(query)
    key, value = gather_context(kv_layer, block_tables, longest, room)
    mask = None
    if min(lens) < longest:
        # NaN survives both a score of -inf and a weight of 0, so what lies beyond a context is wiped, and not
        # masked alone. A context of no tokens is wiped and seen, for an output of 0.
        mask = torch.zeros(sequences, 1, 1, longest, dtype=query.dtype)
        for row, length in enumerate(lens):
            key[row, length:] = 0
            value[row, length:] = 0
            if length:
                mask[row, :, :, length:] = -torch.inf
    # The query heads that share a KV head become rows of one small matrix, so K and V are read only once.
    grouped = query.reshape(sequences, kv_heads, heads // kv_heads, head_dim)
    output = scaled_dot_product_attention(grouped, key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask)
    return output.reshape(sequences, heads, head_dim)


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
    check_attention(NAME, query, kv_layer, block_tables, context_lens)
    if len(query) != len(block_tables):
        wanted = f"one for each of the {len(block_tables)} block tables"
        raise refuse(NAME, "query", f"of {len(query)} sequences", wanted, "check both")
    room = block_tables.shape[1] * kv_layer.shape[2]
    if not 0 <= context_len_max <= room:
        raise refuse(
            NAME,
            "context_len_max",
            context_len_max,
            f"from 0 to the {room} tokens that block_tables has frames for",
            "pass wider block tables, or the true maximum",
        )
