"""Quantised and back: within the bounds that are stated, and the kernels bit for bit as the references."""

from itertools import product
from typing import Any

import pytest
import torch

from kernels.checks import KernelArgumentError
from kernels.dequantize_blocks import dequantize_blocks, dequantize_blocks_reference
from kernels.layout import KVLayout
from kernels.quantize_blocks import quantize_blocks, quantize_blocks_reference
from kernels.quantized_layout import SCALE_MIN, Quantization, QuantizedLayout

FRAMES, LAYERS = 8, 2
GRID = [
    dict(zip(("dtype", "head_dim", "kind", "kv_heads", "block_tokens"), case, strict=True))
    for case in product(
        ["float32", "float16", "bfloat16"],
        [64, 80, 96, 128, 256],
        ["FP8", "INT8"],
        [1, 2, 3],
        [8, 16, 32, 64],
    )
]


def make(dtype: str, head_dim: int, kind: str, kv_heads: int, block_tokens: int) -> QuantizedLayout:
    source = KVLayout(
        layers=LAYERS,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_tokens=block_tokens,
        dtype=getattr(torch, dtype),
    )
    return QuantizedLayout(source=source, quantization=Quantization[kind])


def draw_pool(layout: QuantizedLayout, seed: int) -> torch.Tensor:
    """Heads of very different sizes, and in each head values of all sizes, zeros among them."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    memory = torch.full((FRAMES, layout.source.frame_stride_bytes), 255, dtype=torch.uint8)
    pool = layout.source.view(memory)
    of_heads = torch.exp(2 * normal(FRAMES, LAYERS, 2, 1, layout.source.kv_heads, 1))
    values = normal(*pool.shape) * torch.exp(2 * normal(*pool.shape)) * of_heads
    values[normal(*pool.shape) > 2] = 0
    pool.copy_(values.clamp(-6e4, 6e4).to(pool.dtype))
    return pool


def bound(values: torch.Tensor, layout: QuantizedLayout) -> torch.Tensor:
    """What the module's head says, fp64; `values` are one pool's, in the shape of its blocks."""
    largest = values.abs().amax(dim=(-3, -1), keepdim=True)
    scales = (largest / layout.quantization.largest).clamp_min(SCALE_MIN)
    if layout.quantization is Quantization.FP8:
        lost = torch.maximum(values.abs() / 16, scales / 1024)
    else:
        lost = scales.expand_as(values) / 2
    kind = torch.finfo(layout.source.dtype)
    rounding = (values.abs() + lost) * kind.eps / 2 + kind.smallest_normal * kind.eps / 2
    return lost + largest * 2.0**-21 + rounding


def check(dtype: str, head_dim: int, kind: str, kv_heads: int, block_tokens: int) -> None:
    """Both ways between scattered frames and an extent; part-filled blocks and left out ones among them."""
    layout = make(dtype, head_dim, kind, kv_heads, block_tokens)
    pool, target = draw_pool(layout, head_dim), draw_pool(layout, head_dim + 1)
    frames = torch.tensor([5, -1, 0, 7])
    filled = torch.tensor([block_tokens, block_tokens, 1, block_tokens - 1], dtype=torch.int32)
    # Behind what is filled lies what was there before.
    for frame, tokens in ((0, 1), (7, block_tokens - 1)):
        pool[frame, :, :, tokens:] = torch.nan
    width = layout.block_bytes + 32
    staging, expected = torch.full((2, 4, width), 7, dtype=torch.uint8)
    quantize_blocks(pool, frames, filled, staging, layout)
    quantize_blocks_reference(pool, frames, filled, expected, layout)
    assert torch.equal(staging, expected)
    assert (staging[1] == 7).all()
    assert (staging[:, layout.block_bytes :] == 7).all()

    expected_target = target.clone()
    dequantize_blocks_reference(staging, frames, expected_target, layout)
    dequantize_blocks(staging, frames, target, layout)
    assert torch.equal(target, expected_target)
    for frame, tokens in zip(frames.tolist(), filled.tolist(), strict=True):
        if frame >= 0:
            values = pool[frame].double()
            values[:, :, tokens:] = 0
            assert (target[frame].double() - values).abs().le(bound(values, layout)).all()


def test_reference(case):
    check(**case)


def test_kernel(case, interpreted):
    interpreted(check, **case)


def check_no_blocks(kind: str) -> None:
    layout = make("bfloat16", 64, kind, 2, 16)
    pool = draw_pool(layout, 1)
    before = pool.clone()
    frames, filled = torch.zeros(2, 0, dtype=torch.int64)
    staging = torch.zeros(0, layout.block_bytes, dtype=torch.uint8)
    quantize_blocks(pool, frames, filled, staging, layout)
    dequantize_blocks(staging, frames, pool, layout)
    assert torch.equal(pool.view(torch.int16), before.view(torch.int16))


@pytest.mark.parametrize("kind", ["FP8", "INT8"])
def test_no_blocks(kind, interpreted):
    check_no_blocks(kind)
    interpreted(check_no_blocks, kind=kind)


@pytest.mark.parametrize("kind", ["FP8", "INT8"])
def test_it_halves_what_is_stored(kind):
    layout = make("bfloat16", 64, kind, 3, 16)
    assert layout.block_bytes / layout.source.block_bytes == pytest.approx(0.5, rel=0.01)


def check_every_code() -> None:
    """All finite codes of FP8, and what lies half way between two of them and on either side of that."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    codes = codes[codes.isfinite()].unique()
    between = (codes[1:] + codes[:-1]) / 2
    values = torch.cat([codes, between, between.nextafter(codes[1:]), between.nextafter(codes[:-1])])
    layout = make("float32", 64, "FP8", 1, 32)
    pool = torch.zeros(1, *layout.source.shape)
    pool.view(-1)[: len(values)] = values
    # The largest of each head is 448, so the scale is 1.
    pool[..., -1, :, -1] = 448
    staging, expected = torch.zeros(2, 1, layout.block_bytes, dtype=torch.uint8)
    quantize_blocks(pool, torch.tensor([0]), torch.tensor([32]), staging, layout)
    quantize_blocks_reference(pool, torch.tensor([0]), torch.tensor([32]), expected, layout)
    assert torch.equal(staging, expected)
    assert layout.scales(staging).eq(1).all()
    back = pool.clone()
    dequantize_blocks(staging, torch.tensor([0]), back, layout)
    assert torch.equal(back, pool.to(torch.float8_e4m3fn).float())
    assert torch.equal(back.view(-1)[: len(codes)], codes)


def test_every_code_of_fp8(interpreted):
    check_every_code()
    interpreted(check_every_code)


def check_extremes(kind: str, dtype: str) -> None:
    """Nothing but zeros, the smallest numbers there are, the largest, and what is no number."""
    layout = make(dtype, 64, kind, 1, 8)
    info = torch.finfo(layout.source.dtype)
    pool = torch.zeros(5, *layout.source.shape, dtype=layout.source.dtype)
    pool[1, 0, 0, :, 0, 0] = info.tiny * info.eps
    pool[2, 0, 0] = info.max * torch.linspace(-1, 1, 8)[:, None, None]
    pool[3, 0, 0, 2, 0, 5] = torch.nan
    pool[4, 0, 1, 7, 0, 63] = -torch.inf
    frames, filled = torch.arange(5), torch.full((5,), 8)
    staging, expected = torch.zeros(2, 5, layout.block_bytes, dtype=torch.uint8)
    quantize_blocks(pool, frames, filled, staging, layout)
    quantize_blocks_reference(pool, frames, filled, expected, layout)
    assert torch.equal(staging, expected)

    back = torch.ones_like(pool)
    dequantize_blocks(staging, frames, back, layout)
    bounds = bound(pool[:3].double(), layout)
    assert (back[:3].double() - pool[:3].double()).abs().le(bounds).all()
    # A head that holds one is lost as a whole, and told; the others of the block are not.
    assert back[3, 0, 0].isnan().all()
    assert back[4, 0, 1].isnan().all()
    assert not back[3, 0, 1].any()
    assert not back[4, 0, 0].any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["FP8", "INT8"])
def test_extremes(kind, dtype, interpreted):
    check_extremes(kind, dtype)
    interpreted(check_extremes, kind=kind, dtype=dtype)


def test_a_quantised_replica_has_a_namespace_of_its_own():
    layouts = [make("bfloat16", 64, kind, 3, 16) for kind in ("FP8", "INT8")]
    prints = {layout.fingerprint(bytes(32)) for layout in layouts}
    prints.add(layouts[0].source.fingerprint(bytes(32)))
    assert len(prints) == 3
    assert layouts[0].description()["quantisation"].startswith("fp8_e4m3")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pool": torch.zeros(4, 2, 2, 8, 2, 16, dtype=torch.float16)}, r"pool is float16"),
        ({"pool": torch.zeros(4, 2, 2, 8, 1, 16)}, r"pool is float32\[4, 2, 2, 8, 1, 16\]"),
        ({"pool": torch.zeros(4, 2, 2, 2, 8, 16).transpose(3, 4)}, "pool is .* with strides"),
        ({"frames": torch.zeros(2)}, "frames is float32"),
        ({"staging": torch.zeros(2, 64, dtype=torch.uint8)}, "block_bytes is 1056, .* of a row of staging"),
        ({"staging": torch.zeros(1, 1056, dtype=torch.uint8)}, r"staging is uint8\[1, 1056\]"),
    ],
)
def test_what_cannot_be_taken_is_told(changes, told):
    layout = make("float32", 16, "INT8", 2, 8)
    good: dict[str, Any] = {
        "pool": torch.zeros(4, 2, 2, 8, 2, 16),
        "frames": torch.tensor([0, 1]),
        "staging": torch.zeros(2, layout.block_bytes, dtype=torch.uint8),
        "layout": layout,
    }
    with pytest.raises(KernelArgumentError, match=f"dequantize_blocks: {told}"):
        dequantize_blocks(**(good | changes))
    with pytest.raises(KernelArgumentError, match=f"quantize_blocks: {told}"):
        quantize_blocks(**(good | changes), filled_tokens=torch.tensor([8, 8]))
    with pytest.raises(KernelArgumentError, match=r"filled_tokens is int64\[3\]"):
        quantize_blocks(**good, filled_tokens=torch.tensor([8, 8, 8]))
