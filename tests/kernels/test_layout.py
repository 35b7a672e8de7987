import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from kernels.layout import KVLayout

SMOLLM2 = KVLayout(layers=30, kv_heads=3, head_dim=64, block_tokens=16, dtype=torch.float32)
MODEL = bytes(32)


def test_sizes_follow_from_the_shape():
    assert SMOLLM2.block_bytes == 30 * 2 * 16 * 3 * 64 * 4
    assert SMOLLM2.frame_stride_bytes == SMOLLM2.block_bytes == 180 * 4096
    small = dataclasses.replace(SMOLLM2, layers=2, head_dim=6, dtype=torch.bfloat16)
    assert small.block_bytes == 2 * 2 * 16 * 3 * 6 * 2
    assert small.frame_stride_bytes == 4096


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim", "block_tokens"])
def test_bad_sizes_are_refused_by_name(field):
    with pytest.raises(ValueError, match=f"KVLayout.{field} must be at least 1"):
        dataclasses.replace(SMOLLM2, **dict[str, Any]({field: 0}))


def test_an_integer_type_is_refused():
    with pytest.raises(ValueError, match=r"KVLayout\.dtype"):
        dataclasses.replace(SMOLLM2, dtype=torch.int8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_view_shares_the_bytes_of_the_pool(dtype):
    layout = KVLayout(layers=3, kv_heads=2, head_dim=10, block_tokens=8, dtype=dtype)
    memory = np.zeros((5, layout.frame_stride_bytes), np.uint8)
    pool = layout.view(memory)
    assert pool.shape == (5, 3, 2, 8, 2, 10)
    assert pool.data_ptr() == memory.ctypes.data

    pool[4] = torch.arange(pool[4].numel()).to(dtype).view(layout.shape)
    assert not memory[:4].any()
    assert not memory[4, layout.block_bytes :].any()
    # Block-major: a block is one run of bytes, layer after layer, K before V, token after token.
    written = torch.from_numpy(memory[4, : layout.block_bytes]).view(dtype)
    assert torch.equal(written, torch.arange(written.numel()).to(dtype))

    memory[0, :] = memory[4]
    assert torch.equal(pool[0], pool[4])


def test_a_torch_pool_is_viewed_too():
    memory = torch.zeros(2, SMOLLM2.frame_stride_bytes, dtype=torch.uint8)
    assert SMOLLM2.view(memory).data_ptr() == memory.data_ptr()


@pytest.mark.parametrize(
    "memory",
    [
        np.zeros((2, SMOLLM2.frame_stride_bytes + 4096), np.uint8),
        np.zeros((2, SMOLLM2.frame_stride_bytes), np.int8),
        np.zeros(SMOLLM2.frame_stride_bytes, np.uint8),
    ],
)
def test_a_pool_of_another_layout_is_refused(memory):
    with pytest.raises(ValueError, match=r"a pool of this layout is uint8\[frames, 737280\]"):
        SMOLLM2.view(memory)


def test_the_fingerprint_is_the_same_everywhere():
    # Caches on disk outlive programs: this value may only change with the tag of its version.
    golden = "1de5708c9ee8b35b887380a9d137b9fd162e1af5f2ce06c584616161bccd395e"
    assert SMOLLM2.fingerprint(MODEL).hex() == golden


def test_each_field_changes_the_fingerprint():
    changes: list[dict[str, Any]] = [
        {"layers": 31},
        {"kv_heads": 4},
        {"head_dim": 65},
        {"block_tokens": 17},
        {"dtype": torch.float64},
    ]
    prints = {dataclasses.replace(SMOLLM2, **change).fingerprint(MODEL) for change in changes}
    prints |= {SMOLLM2.fingerprint(MODEL), SMOLLM2.fingerprint(b"\1" * 32)}
    assert len(prints) == len(changes) + 2
    assert all(len(fingerprint) == 32 for fingerprint in prints)


def test_the_description_names_every_part_of_the_fingerprint():
    assert SMOLLM2.description() == {
        "dtype": "float32",
        "layers": "30",
        "kv_heads": "3",
        "head_dim": "64",
        "block_tokens": "16",
        "axes": "layers,kv,block_tokens,kv_heads,head_dim",
        "parallel_split": "1",
        "quantisation": "none",
    }
