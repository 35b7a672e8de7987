"""Kernels compiled for GPUs that are not here, and what the compiler says of them.

A launch planned on tensors of torch's `meta` device, which have shapes and no memory, has all that the
compiler asks for: types, constants, and which numbers are multiples of 16, as Triton notes it at a real
launch. So what is compiled here is what would be launched there, with tensors that begin at multiples of 16
bytes, as all that torch allocates do. Needs no GPU and no driver: Triton brings NVIDIA's assembler along.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.launch import Launch

__all__ = ["TARGETS", "Compiled", "compile_launch"]

# Compute capabilities: A100, H100 and H200, B200.
TARGETS = (80, 90, 100)
ALIGNMENT = 16
THREADS_PER_WARP = 32
POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One kernel for one target."""

    # Of each thread.
    registers: int
    # Bytes of each thread in local memory, which is where registers are spilled to.
    spilled_bytes: int
    # Bytes of each program.
    shared_bytes: int
    ptx: str


def compile_launch(launch: Launch, target: int) -> Compiled:
    """The launch's kernel for a GPU of compute capability `target`, 80 for 8.0.

    Raises what the compiler raises, for one where a program needs more than the GPU has.
    """
    source = _source(launch)
    compiled = triton.compile(
        source, target=GPUTarget("cuda", target, THREADS_PER_WARP), options=launch.options
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _resource_usage(Path(file.name))
    return Compiled(
        registers=usage["REG"],
        spilled_bytes=usage["STACK"] + usage["LOCAL"],
        shared_bytes=compiled.metadata.shared,
        ptx=compiled.asm["ptx"],
    )


def _source(launch: Launch) -> ASTSource:
    """Types of all parameters, as Triton would find them at the launch."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, name in enumerate(launch.kernel.arg_names):
        value = launch.arguments.get(name, 1)
        if isinstance(value, int) and value == 1:
            # Triton compiles a number that is 1 in, too.
            signature[name] = "constexpr"
            constants[place,] = launch.constants.get(name, value)
        elif isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
            attributes[place,] = [["tt.divisibility", ALIGNMENT]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % ALIGNMENT == 0:
                attributes[place,] = [["tt.divisibility", ALIGNMENT]]
    return ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)


def _resource_usage(cubin: Path) -> dict[str, int]:
    """What NVIDIA's tool reads off the machine code: REG, STACK, SHARED, LOCAL."""
    told = subprocess.run(
        [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(cubin)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", told)}
