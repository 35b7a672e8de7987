"""New tokens' K and V in their slots: reference and kernel, each against a loop over tokens."""

from itertools import product
from typing import Any

import pytest
import torch

from kernels.checks import KernelArgumentError
from kernels.layout import KVLayout
from kernels.store_kv import store_kv

FRAMES, LAYERS = 6, 3
GRID = [
    dict(zip(("dtype", "head_dim", "kv_heads", "block_tokens", "tokens"), case, strict=True))
    for case in product(
        ["float32", "float16", "bfloat16"],
        [64, 80, 96, 128, 256],
        [1, 2, 3, 20],
        [8, 16, 32, 64],
        [1, 7, 8, 33],
    )
]


def make_pool(
    block_tokens: int, dtype: torch.dtype, kv_heads: int = 2, head_dim: int = 12
) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes of a pool, filled with 0xFF (NaN in every float type), and the KV seen in them."""
    layout = KVLayout(
        layers=LAYERS, kv_heads=kv_heads, head_dim=head_dim, block_tokens=block_tokens, dtype=dtype
    )
    memory = torch.full((FRAMES, layout.frame_stride_bytes), 255, dtype=torch.uint8)
    return memory, layout.view(memory)


def check(
    dtype: str, head_dim: int, kv_heads: int, block_tokens: int, tokens: int, skipped: tuple[int, ...] = ()
) -> None:
    """Each token lands in its slot, `skipped` ones nowhere, and nothing else changes."""
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(tokens)
    memory, pool = make_pool(block_tokens, kind, kv_heads, head_dim)
    slots = torch.randperm(FRAMES * block_tokens, generator=generator)[:tokens]
    slots[list(skipped)] = -1
    # As they come out of a projection: strided.
    qkv = torch.randn(tokens, 3, kv_heads, head_dim, generator=generator).to(kind)
    key, value = qkv[:, 1], qkv[:, 2]

    store_kv(pool[:, 1], slots, key, value)

    expected_memory, expected = make_pool(block_tokens, kind, kv_heads, head_dim)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            frame, offset = divmod(slot, block_tokens)
            expected[frame, 1, 0, offset] = key[token]
            expected[frame, 1, 1, offset] = value[token]
    assert torch.equal(memory, expected_memory)


def test_reference(case):
    check(**case)


def test_kernel(case, interpreted):
    interpreted(check, **case)


@pytest.mark.parametrize("skipped", [(0,), (2, 6), tuple(range(7))])
def test_tokens_without_a_slot_are_not_written(skipped, interpreted):
    case: dict[str, Any] = {"dtype": "float32", "head_dim": 12, "kv_heads": 2, "block_tokens": 8, "tokens": 7}
    check(**case, skipped=skipped)
    interpreted(check, **case, skipped=skipped)


def test_no_tokens(interpreted):
    case: dict[str, Any] = {"dtype": "float32", "head_dim": 12, "kv_heads": 2, "block_tokens": 8, "tokens": 0}
    check(**case)
    interpreted(check, **case)


def test_the_reference_refuses_a_slot_outside_the_pool():
    _, pool = make_pool(8, torch.float32)
    with pytest.raises(IndexError):
        store_kv(pool[:, 0], torch.tensor([FRAMES * 8]), torch.zeros(1, 2, 12), torch.zeros(1, 2, 12))


def check_slots_beyond() -> None:
    memory, pool = make_pool(8, torch.float32)
    before = memory.clone()
    slots = torch.tensor([FRAMES * 8, 1 << 40])
    store_kv(pool[:, 0], slots, torch.zeros(2, 2, 12), torch.zeros(2, 2, 12))
    assert torch.equal(memory, before)


def test_the_kernel_writes_nothing_outside_the_pool(interpreted):
    interpreted(check_slots_beyond)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"kv_layer": torch.zeros(3, 2, 8, 2, 12, dtype=torch.int16)}, "kv_layer is int16"),
        (
            {"kv_layer": torch.zeros(3, 2, 2, 8, 12).transpose(2, 3)},
            r"kv_layer is .* with strides .*contiguous\(\)",
        ),
        ({"slot_mapping": torch.zeros(5, dtype=torch.int32)}, "slot_mapping is int32"),
        ({"slot_mapping": torch.zeros(4, dtype=torch.int64)}, r"key is float32\[5, 2, 12\]"),
        ({"key": torch.zeros(5, 2, 12, dtype=torch.float64)}, r"key is float64.*key\.to\(torch\.float32\)"),
        (
            {"value": torch.zeros(5, 2, 13)},
            r"value is float32\[5, 2, 13\], but must be of shape \[5, 2, 12\]",
        ),
        ({"value": torch.zeros(5, 2, 24)[..., ::2]}, "value is .* with strides"),
        ({"value": torch.zeros(5, 2, 12, device="meta")}, "value is on meta, but must be on cpu"),
    ],
)
def test_what_cannot_be_taken_is_told(changes, told):
    good: dict[str, Any] = {
        "kv_layer": torch.zeros(3, 2, 8, 2, 12),
        "slot_mapping": torch.arange(5),
        "key": torch.zeros(5, 2, 12),
        "value": torch.zeros(5, 2, 12),
    }
    with pytest.raises(KernelArgumentError, match=f"store_kv: {told}"):
        store_kv(**(good | changes))
