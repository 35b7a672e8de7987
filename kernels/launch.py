"""How an operation runs: as its torch reference or as its kernel, and how a kernel is launched.

Every operation of this package is a contract, a torch reference and a Triton kernel. Which of the two runs is
decided here and nowhere else, by where the tensors are:

    on a GPU                                    the kernel
    on a CPU                                    the torch reference
    on a CPU, in a process under                the kernel, interpreted: slow, for tests
    TRITON_INTERPRET=1

Triton reads that variable when a kernel's module is imported, so it stands for a whole process. A launch is
data: what would run on a GPU can be compiled ahead of time without one (`kernels/ahead_of_time.py`).

Nothing between a call and its launch waits for the GPU or reads a tensor of it, and grids follow from sizes
that the host knows, so that each operation can be captured in a CUDA graph.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import triton

__all__ = ["Arguments", "IS_INTERPRETED", "Launch", "next_power_of_2", "runs_kernel"]

# Tensors and numbers of a launch, by the names of a kernel's parameters.
Arguments: TypeAlias = dict[str, torch.Tensor | int | float]

# Of this process, as all kernels of it are made so when their modules are imported.
IS_INTERPRETED: bool = triton.knobs.runtime.interpret


def runs_kernel(device: torch.device) -> bool:
    """Whether an operation on tensors of this device runs its kernel, and not its torch reference."""
    return device.type == "cuda" or (IS_INTERPRETED and device.type == "cpu")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launch:
    """One launch of one kernel, whole: grid, arguments by name, what is compiled in, and how."""

    # A function under `triton.jit`.
    kernel: Any
    grid: tuple[int, ...]
    arguments: Arguments
    # What another program is compiled for: shapes of tiles, and switches.
    constants: dict[str, int | str | bool]
    warps: int = 4
    # Tiles of a loop that are on their way from memory at once.
    stages: int = 2
    # Whether a product and a sum may be rounded once together; not where the last bit is promised.
    fuses: bool = True

    @property
    def options(self) -> dict[str, int | bool]:
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": self.fuses}

    def run(self) -> None:
        """Launches, on the current stream of the device; an empty grid is no launch."""
        if all(self.grid):
            self.kernel[self.grid](**self.arguments, **self.constants, **self.options)


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least `number`; tiles have no other sizes."""
    return 1 << max(number - 1, 0).bit_length()
