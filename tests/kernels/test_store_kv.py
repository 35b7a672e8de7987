import pytest
import torch

from kernels.layout import KVLayout
from kernels.store_kv import store_kv

FRAMES, LAYERS = 6, 3


def make_pool(block_tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes of a pool, filled with 0xFF (NaN in every float type), and the KV seen in them."""
    layout = KVLayout(layers=LAYERS, kv_heads=2, head_dim=12, block_tokens=block_tokens, dtype=dtype)
    memory = torch.full((FRAMES, layout.frame_stride_bytes), 255, dtype=torch.uint8)
    return memory, layout.view(memory)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_tokens", [8, 16, 32])
@pytest.mark.parametrize("tokens", [1, 7, 8, 33])
def test_each_token_lands_in_its_slot_and_nothing_else_changes(block_tokens, tokens, dtype):
    generator = torch.Generator().manual_seed(tokens)
    memory, pool = make_pool(block_tokens, dtype)
    slots = torch.randperm(FRAMES * block_tokens, generator=generator)[:tokens]
    key, value = torch.randn(2, tokens, 2, 12, generator=generator).to(dtype)

    store_kv(pool[:, 1], slots, key, value)

    expected_memory, expected = make_pool(block_tokens, dtype)
    for token, slot in enumerate(slots.tolist()):
        frame, offset = divmod(slot, block_tokens)
        expected[frame, 1, 0, offset] = key[token]
        expected[frame, 1, 1, offset] = value[token]
    assert torch.equal(memory, expected_memory)


def test_key_and_value_may_be_strided():
    _, pool = make_pool(8, torch.float32)
    heads = torch.randn(5, 6, 12)
    store_kv(pool[:, 0], torch.arange(5), heads[:, 2:4], heads[:, 4:])
    assert torch.equal(pool[0, 0, 0, :5], heads[:, 2:4])
    assert torch.equal(pool[0, 0, 1, :5], heads[:, 4:])


def test_a_slot_outside_the_pool_is_refused():
    _, pool = make_pool(8, torch.float32)
    with pytest.raises(IndexError):
        store_kv(pool[:, 0], torch.tensor([FRAMES * 8]), torch.zeros(1, 2, 12), torch.zeros(1, 2, 12))
