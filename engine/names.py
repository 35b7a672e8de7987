"""What is asked for by name, and known before anything is loaded: models, types of numbers, devices."""

import re

__all__ = ["DEVICE_HELP", "DTYPE_NAMES", "MODEL_NAMES", "cuda_number", "is_device"]

MODEL_NAMES = ("smollm2", "tiny")
# Of weights and KV; the first is the default.
DTYPE_NAMES = ("fp32", "bf16", "fp16")
DEVICE_HELP = "Where it computes: cpu, cuda or cuda:N; there the service's GPU tier has to be too."
CUDA = re.compile(r"cuda(?::([0-9]+))?")


def is_device(name: str) -> bool:
    return name == "cpu" or CUDA.fullmatch(name) is not None


def cuda_number(name: str) -> int:
    """`cuda` is the first that this process sees. Raises ValueError for what is no GPU's name."""
    found = CUDA.fullmatch(name)
    if found is None:
        raise ValueError(f"{name} is no GPU")
    return int(found[1] or 0)
