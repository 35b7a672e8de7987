"""Every argument of every operation, wrong in every way that a caller gets one wrong: told by its name, with
what it is, what it must be and what helps; and nothing has run.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kernels.checks import KernelArgumentError
from kernels.copy_blocks import copy_blocks
from kernels.dequantize_blocks import dequantize_blocks
from kernels.gather_blocks import gather_blocks, scatter_blocks
from kernels.layout import KVLayout
from kernels.paged_attention_decode import paged_attention_decode
from kernels.paged_attention_prefill import paged_attention_prefill
from kernels.quantize_blocks import quantize_blocks
from kernels.quantized_layout import Quantization, QuantizedLayout
from kernels.store_kv import store_kv

SOURCE = KVLayout(layers=2, kv_heads=2, head_dim=16, block_tokens=8, dtype=torch.float32)
LAYOUT = QuantizedLayout(source=SOURCE, quantization=Quantization.INT8)
# Of a type, a shape or a place that no argument has.
TENSORS: dict[str, Callable[[torch.Tensor], object]] = {
    "complex": lambda tensor: tensor.to(torch.complex64),
    "bool": lambda tensor: tensor.bool(),
    "a number": lambda tensor: torch.zeros((), dtype=tensor.dtype),
    "one axis more": lambda tensor: tensor[None],
    "one axis less": lambda tensor: tensor.flatten() if tensor.dim() > 1 else tensor[0],
    "sparse": lambda tensor: tensor.to_sparse(),
    "without memory": lambda tensor: tensor.to("meta"),
    "numpy": lambda tensor: tensor.numpy(),
    "a list": lambda tensor: tensor.tolist(),
    "nothing": lambda tensor: None,
}
NUMBERS: dict[str, Callable[[int], object]] = {
    "a float": float,
    "a tensor": torch.tensor,
    "a bool": bool,
    "text": str,
    "nothing": lambda number: None,
    "negative": lambda number: -1,
    "too large": lambda number: 2**40,
}


def bytes_of(rows: int, width: int = 64) -> torch.Tensor:
    return torch.zeros(rows, width, dtype=torch.uint8)


def calls() -> dict[Callable[..., object], dict[str, Any]]:
    """Each operation with arguments that it takes."""
    blocks = {"memory": bytes_of(4), "frames": torch.tensor([0, 1]), "staging": bytes_of(2)}
    attention = {
        "kv_layer": torch.zeros(6, 2, 16, 2, 8),
        "block_tables": torch.zeros(2, 3, dtype=torch.int64),
    }
    quantised = {
        "pool": torch.zeros(4, *SOURCE.shape),
        "frames": torch.tensor([0, 1]),
        "staging": bytes_of(2, LAYOUT.block_bytes),
        "layout": LAYOUT,
    }
    return {
        store_kv: {
            "kv_layer": torch.zeros(3, 2, 8, 2, 12),
            "slot_mapping": torch.arange(5),
            "key": torch.zeros(5, 2, 12),
            "value": torch.zeros(5, 2, 12),
        },
        paged_attention_decode: attention
        | {"query": torch.zeros(2, 4, 8), "context_lens": torch.ones(2).long(), "context_len_max": 48},
        paged_attention_prefill: attention
        | {
            "query": torch.zeros(7, 4, 8),
            "query_starts": torch.tensor([0, 3, 7]),
            "context_lens": torch.tensor([3, 20]),
            "query_len_max": 4,
        },
        copy_blocks: {
            "memory": bytes_of(4),
            "sources": torch.tensor([0, 1]),
            "targets": torch.tensor([2, 3]),
            "block_bytes": 64,
        },
        gather_blocks: blocks | {"block_bytes": 64},
        scatter_blocks: blocks | {"block_bytes": 64},
        quantize_blocks: quantised | {"filled_tokens": torch.tensor([8, 8])},
        dequantize_blocks: quantised,
    }


def wrong_arguments() -> Iterator[Any]:
    for operation, good in calls().items():
        for name, value in good.items():
            if isinstance(value, torch.Tensor):
                wrongs = {what: make(value) for what, make in TENSORS.items()}
            elif isinstance(value, int):
                wrongs = {what: make(value) for what, make in NUMBERS.items()}
            else:
                wrongs = {"nothing": None, "the source's": SOURCE}
            for what, wrong in wrongs.items():
                yield pytest.param(operation, name, wrong, id=f"{operation.__name__}-{name}-{what}")


@pytest.mark.parametrize("operation", calls(), ids=lambda operation: operation.__name__)
def test_what_is_changed_below_is_good(operation):
    operation(**calls()[operation])


def test_what_is_wrong_is_told_by_name_with_what_helps():
    for case in wrong_arguments():
        operation, name, wrong = case.values
        told = f"{operation.__name__}: {name} is .*, but must be .*; remedy: ."
        with pytest.raises(KernelArgumentError) as caught:
            operation(**(calls()[operation] | {name: wrong}))
        assert re.match(told, str(caught.value), re.DOTALL), (case.id, str(caught.value))


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (store_kv, "kv_layer"),
        (paged_attention_decode, "kv_layer"),
        (paged_attention_prefill, "kv_layer"),
        (copy_blocks, "memory"),
        (gather_blocks, "staging"),
        (scatter_blocks, "memory"),
        (quantize_blocks, "staging"),
        (dequantize_blocks, "pool"),
    ],
)
def test_frames_that_are_one_piece_of_memory_are_refused(operation, name):
    """As `expand` makes them: what is written to one would be written to all."""
    good = calls()[operation]
    shared = good[name][:1].expand(good[name].shape)
    with pytest.raises(KernelArgumentError, match=rf"{operation.__name__}: {name} is .* with strides \[0, "):
        operation(**(good | {name: shared}))


@pytest.mark.parametrize(
    ("operation", "name", "changes"),
    [
        (store_kv, "kv_layer", {"kv_layer": torch.zeros(3, 2, 0, 2, 12)}),
        (paged_attention_decode, "kv_layer", {"kv_layer": torch.zeros(6, 2, 16, 0, 8)}),
        (paged_attention_decode, "query", {"query": torch.zeros(2, 0, 8)}),
        # What a GPU is not waited for, a CPU can look at.
        (paged_attention_decode, r"context_lens\[1\]", {"context_lens": torch.tensor([1, 49])}),
        (
            paged_attention_decode,
            r"context_lens\[0\]",
            {"context_lens": torch.tensor([3, 2]), "context_len_max": 2},
        ),
        (paged_attention_decode, r"context_lens\[0\]", {"context_lens": torch.tensor([-1, 2])}),
        (paged_attention_prefill, "query_starts", {"query": torch.zeros(8, 4, 8)}),
        (paged_attention_prefill, "query_starts", {"query_starts": torch.tensor([1, 3, 7])}),
        (paged_attention_prefill, r"query_starts' length\[0\]", {"query_starts": torch.tensor([0, 5, 7])}),
        (paged_attention_prefill, r"query_starts' length\[1\]", {"query_len_max": 3}),
        (paged_attention_prefill, r"context_lens\[0\]", {"context_lens": torch.tensor([2, 20])}),
        (paged_attention_prefill, r"context_lens\[1\]", {"context_lens": torch.tensor([3, 49])}),
    ],
)
def test_sizes_and_lengths_that_can_not_be_are_refused(operation, name, changes):
    with pytest.raises(
        KernelArgumentError, match=f"{operation.__name__}: {name} is .*, but must be .*; remedy: ."
    ):
        operation(**(calls()[operation] | changes))
