"""Kernels run by Triton's interpreter, in a process of their own beside the tests.

Triton decides when it is imported whether kernels are interpreted, for the whole process: under
TRITON_INTERPRET=1 it cannot compile them, and engines would run them in place of the torch references. So
the process of the tests never sets it. A check is a function of a test module that is called in the other
process, with arguments that JSON can say; what it raises comes back as text.

    python -m tests.kernels.interpreting     (started by the fixture `interpreted`)
"""

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["Interpreter"]

ROOT = Path(__file__).parents[2]


class Interpreter:
    """The other process. Started at once, so that it imports torch while the first tests run."""

    def __init__(self) -> None:
        self._process = self._start()

    def __call__(self, check: Callable[..., None], **arguments: Any) -> None:
        """Runs `check` over there; fails with its traceback if it raises, or ends the process."""
        if self._process.poll() is not None:
            self.close()
            self._process = self._start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"module": check.__module__, "check": check.__name__, "arguments": arguments}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError(f"the interpreter's process ended, with {self._process.wait()}")
        if error := json.loads(answer):
            raise AssertionError(error)

    def close(self) -> None:
        # Closes the pipes and waits.
        with self._process:
            pass

    def _start(self) -> subprocess.Popen[str]:
        environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.interpreting"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def mend() -> None:
    """Two things about the interpreter that are not so on a GPU, nor fit for tests.

    It puts its own functions into `triton.language` at each call of each function under `triton.jit`,
    `tl.max` for one, which takes four fifths of its time. Here nothing else needs the language, so what it
    has put there for a module stays. And it cuts fp32 off to bf16, where GPUs round.
    """
    from triton import language as tl
    from triton.runtime import interpreter

    patch_lang, nothing_to_restore = interpreter._patch_lang, interpreter._LangPatchScope()
    convert_float = interpreter._convert_float
    patched = set()

    def patch(function: Callable[..., Any]) -> interpreter._LangPatchScope:
        if id(function.__globals__) not in patched:
            patched.add(id(function.__globals__))
            patch_lang(function)
        return nothing_to_restore

    def convert(values: Any, source: tl.dtype, target: tl.dtype, rounding: Any) -> Any:
        if (source, target) == (tl.float32, tl.bfloat16):
            rounded = torch.from_numpy(values.view(np.float32)).bfloat16()
            return rounded.view(torch.int16).numpy().view(np.uint16)
        if (source, target) == (tl.bfloat16, tl.float32):
            return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return convert_float(values, source, target, rounding)

    interpreter._patch_lang = patch
    interpreter._convert_float = convert


def answer_all() -> None:
    mend()
    # What a check prints must not stand between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            getattr(importlib.import_module(asked["module"]), asked["check"])(**asked["arguments"])
            error = ""
        except Exception:
            error = traceback.format_exc()
        answers.write(json.dumps(error) + "\n")
        answers.flush()


if __name__ == "__main__":
    answer_all()
