"""A context split between several programs, and what these have found merged into one output.

Flash-decoding (Dao, Haziza, Massa, Sizov, 2023): attention over a part of a context is the weighted mean of
its V, and the log of the sum of its exponentials is what that counts for beside the other parts. Into how
many parts is decided from sizes that the host knows, so that a grid is the same for all steps of one graph;
where they begin, from each sequence's own length, which only the GPU knows.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import Launch, next_power_of_2

__all__ = ["make_parts", "plan_merge", "splits_for", "tokens_of_split"]

# Programs that fill the largest of today's GPUs a few times over; more would only have more to merge.
PROGRAMS_WANTED = 512
SPLITS_MAX = 64
# A part that is shorter than this isn't worth a program and its merge. A multiple of all tiles.
SPLIT_TOKENS_MIN = tl.constexpr(256)
MERGED_AT_ONCE = 16


def splits_for(programs: int, context_len_max: int) -> int:
    """Parts of a context where `programs` would run unsplit: a power of two, so that few are compiled."""
    wanted = min(PROGRAMS_WANTED // max(programs, 1), context_len_max // SPLIT_TOKENS_MIN.value, SPLITS_MAX)
    return next_power_of_2(wanted + 1) // 2 if wanted > 1 else 1


def make_parts(query: torch.Tensor, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for what the parts find, fp32[sequences * heads * splits, head_dim], and the log2 of what each
    counts for, fp32[sequences * heads * splits]. Empty where there is one part only, and no merge."""
    sequences, heads, head_dim = query.shape
    count = sequences * heads * splits if splits > 1 else 0
    found = torch.empty(count, head_dim, dtype=torch.float32, device=query.device)
    return found, torch.empty(count, dtype=torch.float32, device=query.device)


def plan_merge(
    output: torch.Tensor, found: torch.Tensor, weight: torch.Tensor, context_lens: torch.Tensor, splits: int
) -> Launch:
    """output: dtype[sequences, heads, head_dim], contiguous. One program for each head of each sequence."""
    sequences, heads, head_dim = output.shape
    return Launch(
        kernel=_merge,
        grid=(sequences, heads),
        arguments={
            "output_ptr": output,
            "found_ptr": found,
            "weight_ptr": weight,
            "lens_ptr": context_lens,
        },
        constants={
            "HEAD_DIM": head_dim,
            "DIM": next_power_of_2(head_dim),
            "SPLITS": splits,
            "AT_ONCE": min(splits, MERGED_AT_ONCE),
        },
    )


@triton.jit
def tokens_of_split(length, SPLITS: tl.constexpr):
    """Tokens of each part of a context but the last. 0 where there is no context."""
    return tl.cdiv(tl.cdiv(length, SPLITS), SPLIT_TOKENS_MIN) * SPLIT_TOKENS_MIN


@triton.jit
def _merge(
    output_ptr,
    found_ptr,
    weight_ptr,
    lens_ptr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    sequence = tl.program_id(0).to(tl.int64)
    head = sequence * tl.num_programs(1) + tl.program_id(1)
    length = tl.load(lens_ptr + sequence).to(tl.int32)
    parts = tl.cdiv(length, tl.maximum(tokens_of_split(length, SPLITS), 1))
    dims = tl.arange(0, DIM)
    is_dim = dims < HEAD_DIM
    weight_max = tl.full([], float("-inf"), tl.float32)
    weight_sum = tl.zeros([], tl.float32)
    output = tl.zeros([DIM], tl.float32)
    for first in range(0, parts, AT_ONCE):
        those = first + tl.arange(0, AT_ONCE)
        is_part = those < parts
        weights = tl.load(weight_ptr + head * SPLITS + those, mask=is_part, other=float("-inf"))
        places = found_ptr + (head * SPLITS + those)[:, None] * HEAD_DIM + dims[None, :]
        found = tl.load(places, mask=is_part[:, None] & is_dim[None, :], other=0.0)
        weight_max_now = tl.maximum(weight_max, tl.max(weights, axis=0))
        shrunk = tl.exp2(weight_max - weight_max_now)
        shares = tl.exp2(weights - weight_max_now)
        output = output * shrunk + tl.sum(shares[:, None] * found, axis=0)
        weight_sum = weight_sum * shrunk + tl.sum(shares, axis=0)
        weight_max = weight_max_now
    # A context of no tokens has no parts: its output is 0.
    output = output / tl.where(weight_sum > 0, weight_sum, 1.0)
    tl.store(output_ptr + head * HEAD_DIM + dims, output.to(output_ptr.dtype.element_ty), mask=is_dim)
