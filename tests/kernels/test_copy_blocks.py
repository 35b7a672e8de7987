"""Blocks from frame to frame: reference and kernel, each against a loop."""

from itertools import product
from typing import Any

import pytest
import torch

from kernels.checks import KernelArgumentError
from kernels.copy_blocks import copy_blocks

FRAMES = 12
GRID = [
    dict(zip(("block_bytes", "pairs", "gap"), case, strict=True))
    for case in product([16, 512, 4096, 16400, 40960], [0, 1, 5], [0, 16, 4096])
]


def check(block_bytes: int, pairs: int, gap: int, skipped: tuple[int, ...] = ()) -> None:
    generator = torch.Generator().manual_seed(block_bytes)
    memory = torch.randint(256, (FRAMES, block_bytes + gap), generator=generator, dtype=torch.uint8)
    frames = torch.randperm(FRAMES, generator=generator)
    # A source may be copied more than once.
    sources, targets = frames[:3].repeat(2)[:pairs], frames[3 : 3 + pairs].clone()
    sources[list(skipped)] = -1
    expected = memory.clone()
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        if source >= 0:
            expected[target, :block_bytes] = expected[source, :block_bytes]

    copy_blocks(memory, sources, targets, block_bytes)

    assert torch.equal(memory, expected)


def test_reference(case):
    check(**case)


def test_kernel(case, interpreted):
    interpreted(check, **case)


@pytest.mark.parametrize("skipped", [(0,), (1, 4), (0, 1, 2, 3, 4)])
def test_pairs_without_a_source_are_passed_over(skipped, interpreted):
    check(512, 5, 16, skipped)
    interpreted(check, block_bytes=512, pairs=5, gap=16, skipped=skipped)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"memory": torch.zeros(4, 64, dtype=torch.int8)}, r"memory is int8\[4, 64\], but must be uint8"),
        ({"memory": torch.zeros(4, 72, dtype=torch.uint8)}, "memory is at address .* rows 72 bytes apart"),
        ({"memory": torch.zeros(4, 128, dtype=torch.uint8)[:, 1:]}, "memory is at address"),
        ({"memory": torch.zeros(4, 128, dtype=torch.uint8)[:, ::2]}, "memory is .* with strides"),
        ({"sources": torch.tensor([0, 1], device="meta")}, "sources is on meta, but must be on cpu"),
        ({"sources": torch.zeros(2, dtype=torch.int32)}, "sources is int32"),
        (
            {"targets": torch.zeros(3, dtype=torch.int64)},
            r"targets is int64\[3\], but must be of shape \[2\]",
        ),
        ({"block_bytes": 40}, "block_bytes is 40, but must be a positive multiple of 16"),
        ({"block_bytes": 80}, "block_bytes is 80, but must be at most the 64 of a row of memory"),
    ],
)
def test_what_cannot_be_taken_is_told(changes, told):
    good: dict[str, Any] = {
        "memory": torch.zeros(4, 64, dtype=torch.uint8),
        "sources": torch.tensor([0, 1]),
        "targets": torch.tensor([2, 3]),
        "block_bytes": 64,
    }
    with pytest.raises(KernelArgumentError, match=f"copy_blocks: {told}"):
        copy_blocks(**(good | changes))
