"""All kernels compiled for three generations of GPUs, and what they take of them."""

import re
from functools import cache
from itertools import product

import pytest
import torch
import triton

from bench.kernel_launches import LLAMA_8B, ModelShape, launches
from kernels.ahead_of_time import TARGETS, Compiled, compile_launch
from kernels.launch import IS_INTERPRETED

pytestmark = pytest.mark.skipif(IS_INTERPRETED, reason="TRITON_INTERPRET is set: nothing can be compiled")

# With four warps of 255 registers each, or eight of 128, a multiprocessor has room for two programs; prefill
# of the largest heads has it to itself. On all targets so much shared memory leaves room for two as well.
SHARED_BYTES_MAX = 100_000
# A spill of this size is an address or two, written and read once outside of any loop.
SPILLED_BYTES_MAX = 16
REGISTERS_MAX = {
    "store_kv": 64,
    "paged_attention_decode": 255,
    "paged_attention_decode, merge": 64,
    "paged_attention_prefill": 255,
    "copy_blocks": 64,
    "gather_blocks": 64,
    "scatter_blocks": 64,
    "quantize_blocks FP8": 128,
    "quantize_blocks INT8": 128,
    "dequantize_blocks FP8": 128,
    "dequantize_blocks INT8": 128,
}
# By head size only what depends on it: rows of attention have its size, tiles of quantising too.
SIZES = [
    ModelShape(dtype=dtype, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    for dtype, (heads, kv_heads), head_dim in product(
        [torch.float32, torch.float16, torch.bfloat16],
        [(8, 8), (9, 3), (32, 8), (71, 1)],
        [64, 80, 96, 128, 256],
    )
]


@pytest.fixture(autouse=True, scope="module")
def compiled_anew(tmp_path_factory):
    """And not found where an earlier run has left it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.knobs.cache, "dir", str(tmp_path_factory.mktemp("triton")))
        yield


@cache
def compiled_for(name: str, target: int) -> Compiled:
    return compile_launch(dict(launches(LLAMA_8B))[name], target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", REGISTERS_MAX)
def test_within_bounds(name, target):
    compiled = compiled_for(name, target)
    assert compiled.spilled_bytes == 0
    assert 0 < compiled.registers <= REGISTERS_MAX[name]
    assert compiled.shared_bytes <= SHARED_BYTES_MAX


def test_all_kernels_have_bounds():
    assert {name for name, _ in launches(LLAMA_8B)} == set(REGISTERS_MAX)


@pytest.mark.grid
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_within_bounds_at_all_sizes(shape, target):
    for name, launch in launches(shape):
        compiled = compile_launch(launch, target)
        assert compiled.spilled_bytes <= SPILLED_BYTES_MAX, name
        assert compiled.registers <= REGISTERS_MAX[name], name
        assert compiled.shared_bytes <= SHARED_BYTES_MAX, name


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["copy_blocks", "gather_blocks", "scatter_blocks"])
def test_copies_move_16_bytes_at_a_time(name, target):
    ptx = compiled_for(name, target).ptx
    loads = re.findall(r"\bld\.global\S*", ptx)
    stores = re.findall(r"\bst\.global\S*", ptx)
    # Beside the bytes a program reads which frames it has.
    assert {load for load in loads if not load.endswith(".b64")} == {"ld.global.v4.b32"}
    assert sum(load.endswith(".b64") for load in loads) <= 2
    assert set(stores) == {"st.global.v4.b32"}


@pytest.mark.parametrize(("target", "instruction"), [(80, "mma.sync"), (90, "wgmma"), (100, "tcgen05.mma")])
def test_prefill_multiplies_on_tensor_cores(target, instruction):
    compiled = compiled_for("paged_attention_prefill", target)
    assert instruction in compiled.ptx
    # Tiles are on their way from memory while those before them are multiplied.
    assert "cp.async" in compiled.ptx
