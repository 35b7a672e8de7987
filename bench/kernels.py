"""Attention on a CPU beside torch's, and what the GPU's compilers say of the kernels, without a GPU.

    python -m bench.kernels [--json] [--quick] [--save]

What kernels take on a GPU needs one; what is told here is how well they fit: registers of a thread, bytes
spilled, shared memory of a program, on each of three generations.
"""

from collections.abc import Iterator

from bench.kernel_launches import LLAMA_8B, launches
from bench.kernels_cpu import attention_rows, step_rows
from bench.report import Row, main, make_row
from kernels.ahead_of_time import TARGETS, compile_launch

ROUNDS, ROUNDS_QUICK = 60, 10
STEP_ROUNDS, STEP_ROUNDS_QUICK = 12, 3


def measure(quick: bool) -> Iterator[Row]:
    yield from attention_rows(ROUNDS_QUICK if quick else ROUNDS)
    yield from step_rows(STEP_ROUNDS_QUICK if quick else STEP_ROUNDS)
    yield from _compiled()


def _compiled() -> Iterator[Row]:
    """For a model of the shape of Llama 3.1 8B, bf16, blocks of 16 tokens."""
    for name, launch in launches(LLAMA_8B):
        for target in TARGETS:
            compiled = compile_launch(launch, target)
            where = f"{name}, sm_{target}, {launch.warps} warps"
            yield make_row(f"{where}: registers", "/thread", [compiled.registers])
            yield make_row(f"{where}: spilled", "B/thread", [compiled.spilled_bytes], at_most=0)
            yield make_row(f"{where}: shared memory", "B", [compiled.shared_bytes])


if __name__ == "__main__":
    main("kernels", "Attention on a CPU, and kernels compiled ahead of time.", measure)
