"""The loop that decode and prefill share: some queries over a run of a context, tile by tile.

Online softmax, as in FlashAttention (Dao et al., 2022, arXiv:2205.14135): of all scores seen so far only
their maximum, the sum of their exponentials and the weighted sum of V are kept. Exponentials are to base 2,
so the scale of the scores carries log2(e). Queries are rows, whatever heads or tokens they are of; all read
one KV head, so K and V are read once for the whole group.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import IS_INTERPRETED, next_power_of_2

__all__ = ["Tiles", "attend_tiles", "score_scale", "tiles_for"]

# Bytes of one tile of K: that many, of K and of V, for each stage, are in shared memory at once.
TILE_BYTES = 16384
# The smallest side of a matrix that tensor cores multiply.
SIDE_MIN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Sizes of what one program holds; powers of two."""

    # Query rows; as many as are asked for, within these bounds.
    rows: int
    # Tokens of a tile of K and of V.
    tokens: int
    # `head_dim` with what fills it up to a power of two.
    dim: int
    warps: int

    def constants(self, kv_layer: torch.Tensor, group: int) -> dict[str, int | str | bool]:
        """What a kernel that calls `attend_tiles` is compiled for."""
        return {
            "GROUP": group,
            "BLOCK_TOKENS": kv_layer.shape[2],
            "HEAD_DIM": kv_layer.shape[4],
            "DIM": self.dim,
            "ROWS": self.rows,
            "TILE": self.tokens,
            # Tensor cores would round fp32 to ten bits; who keeps KV in fp32 wants them all.
            "PRECISION": "ieee" if kv_layer.dtype is torch.float32 else "tf32",
            # The interpreter multiplies the bits of bf16; widened first, its products are the tensor cores'.
            "WIDENED": IS_INTERPRETED,
        }


def tiles_for(kv_layer: torch.Tensor, rows: int, rows_max: int) -> Tiles:
    """Tiles for programs of up to `rows` query rows, never more than `rows_max`."""
    dim = max(SIDE_MIN, next_power_of_2(kv_layer.shape[4]))
    itemsize = kv_layer.dtype.itemsize
    # fp32 is multiplied without tensor cores, out of registers: a smaller share for each thread.
    is_wide = itemsize > 2
    rows = min(SIDE_MIN if is_wide else rows_max, max(SIDE_MIN, next_power_of_2(rows)))
    # What a thread holds of scores and outputs has to fit into its registers, on all targets.
    tokens = max(SIDE_MIN, min(64 if rows * dim <= 4096 else 32, TILE_BYTES // (dim * itemsize)))
    return Tiles(rows=rows, tokens=tokens, dim=dim, warps=8 if is_wide or rows * dim >= 16384 else 4)


def score_scale(head_dim: int) -> float:
    """What a product of q and k is multiplied by, for exponentials to base 2."""
    return math.log2(math.e) / math.sqrt(head_dim)


@triton.jit
def attend_tiles(
    query,
    kv_ptr,
    table_ptr,
    begin,
    end,
    last,
    scale,
    stride_frame,
    stride_side,
    stride_token,
    BLOCK_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDENED: tl.constexpr,
):
    """Attention of `query`, [ROWS, DIM], over tokens `begin` to `end` of one context.

    kv_ptr     the KV head's K of slot 0 of frame 0; its V is `stride_side` further
    table_ptr  the sequence's frames in token order
    last       int32[ROWS]: the last token that each row sees, below `end`; one of the first tile or later
    Returns the weighted sum of V, fp32[ROWS, DIM], still to be divided by the third; the largest score and
    the sum of exponentials relative to it, fp32[ROWS] each.
    """
    score_max = tl.full([ROWS], float("-inf"), tl.float32)
    weight_sum = tl.zeros([ROWS], tl.float32)
    output = tl.zeros([ROWS, DIM], tl.float32)
    dims = tl.arange(0, DIM)
    if WIDENED:
        query = query.to(tl.float32)
    for first in range(begin, end, TILE):
        tokens = first + tl.arange(0, TILE)
        is_token = tokens < end
        # What lies beyond the end is never read: it may be NaN, which survives a weight of 0.
        is_there = is_token[:, None]
        if HEAD_DIM < DIM:
            is_there = is_there & (dims[None, :] < HEAD_DIM)
        frames = tl.load(table_ptr + tokens // BLOCK_TOKENS, mask=is_token, other=0)
        # 64 bits: a pool has more elements than 32 can count.
        slots = frames.to(tl.int64) * stride_frame + (tokens % BLOCK_TOKENS) * stride_token
        places = kv_ptr + slots[:, None] + dims[None, :]

        key = tl.load(places, mask=is_there, other=0.0)
        if WIDENED:
            key = key.to(tl.float32)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        scores = tl.where(tokens[None, :] <= last[:, None], scores, float("-inf"))
        score_max_now = tl.maximum(score_max, tl.max(scores, axis=1))
        weights = tl.exp2(scores - score_max_now[:, None])
        shrunk = tl.exp2(score_max - score_max_now)

        value = tl.load(places + stride_side, mask=is_there, other=0.0)
        weight_sum = weight_sum * shrunk + tl.sum(weights, axis=1)
        output = output * shrunk[:, None]
        weights = weights.to(value.dtype)
        if WIDENED:
            weights, value = weights.to(tl.float32), value.to(tl.float32)
        output = tl.dot(weights, value, output, input_precision=PRECISION)
        score_max = score_max_now
    return output, score_max, weight_sum
