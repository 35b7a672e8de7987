"""The tests' own libcuda (`libcuda.c`), built for processes that are told to find it."""

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["build_stub"]


def build_stub(folder: Path) -> None:
    """libcuda.so.1 in `folder`; skips where there is no compiler, or no `cuda-bindings` to call it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    pytest.importorskip("cuda.bindings")
    flags = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1"]
    source = Path(__file__).parent / "libcuda.c"
    subprocess.run([compiler, *flags, "-o", folder / "libcuda.so.1", source, "-ldl"], check=True)
