"""Blocks to and from a staging extent: references and kernels, each against a loop."""

from itertools import product
from typing import Any

import pytest
import torch

from kernels.checks import KernelArgumentError
from kernels.gather_blocks import gather_blocks, scatter_blocks

FRAMES = 9
GRID = [
    dict(zip(("block_bytes", "blocks", "gap"), case, strict=True))
    for case in product([16, 512, 4096, 16400, 40960], [0, 1, 7], [0, 16, 4096])
]


def check(block_bytes: int, blocks: int, gap: int, skipped: tuple[int, ...] = ()) -> None:
    generator = torch.Generator().manual_seed(block_bytes)

    def draw(rows: int, more: int) -> torch.Tensor:
        return torch.randint(256, (rows, block_bytes + more), generator=generator, dtype=torch.uint8)

    memory, staging = draw(FRAMES, gap), draw(blocks, 32)
    frames = torch.randperm(FRAMES, generator=generator)[:blocks]
    frames[list(skipped)] = -1
    moved = [(row, frame) for row, frame in enumerate(frames.tolist()) if frame >= 0]

    expected, before = staging.clone(), memory.clone()
    for row, frame in moved:
        expected[row, :block_bytes] = memory[frame, :block_bytes]
    gather_blocks(memory, frames, staging, block_bytes)
    assert torch.equal(staging, expected)
    assert torch.equal(memory, before)

    other = draw(FRAMES, gap)
    expected = other.clone()
    for row, frame in moved:
        expected[frame, :block_bytes] = staging[row, :block_bytes]
    scatter_blocks(staging, frames, other, block_bytes)
    assert torch.equal(other, expected)


def test_reference(case):
    check(**case)


def test_kernel(case, interpreted):
    interpreted(check, **case)


@pytest.mark.parametrize("skipped", [(0,), (1, 4), (0, 1, 2, 3, 4)])
def test_blocks_without_a_frame_are_passed_over(skipped, interpreted):
    check(512, 5, 16, skipped)
    interpreted(check, block_bytes=512, blocks=5, gap=16, skipped=skipped)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"memory": torch.zeros(4, 64)}, "memory is float32"),
        ({"memory": torch.zeros(4, 72, dtype=torch.uint8)}, "memory is at address .* rows 72 bytes apart"),
        ({"frames": torch.zeros(2, dtype=torch.int32)}, "frames is int32"),
        ({"staging": torch.zeros(3, 64, dtype=torch.uint8)}, r"staging is uint8\[3, 64\]"),
        ({"staging": torch.zeros(2, 48, dtype=torch.uint8)}, "block_bytes is 64, .* of a row of staging"),
        ({"staging": torch.zeros(2, 64, dtype=torch.uint8, device="meta")}, "staging is on meta"),
        ({"block_bytes": 8}, "block_bytes is 8"),
    ],
)
def test_what_cannot_be_taken_is_told(changes, told):
    good: dict[str, Any] = {
        "memory": torch.zeros(4, 64, dtype=torch.uint8),
        "frames": torch.tensor([0, 1]),
        "staging": torch.zeros(2, 64, dtype=torch.uint8),
        "block_bytes": 64,
    }
    for operation in (gather_blocks, scatter_blocks):
        with pytest.raises(KernelArgumentError, match=f"{operation.__name__}: {told}"):
            operation(**(good | changes))
