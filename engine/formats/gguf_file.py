"""A GGUF file, opened: its metadata by key, its tensors by name, dequantised as they are read.

One `GGUFFile` serves weights and tokenizer, because its metadata (100,000 strings) is slow to read.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFReader
from gguf.quants import dequantize

from engine.refused import ModelRefused

__all__ = ["GGUFFile"]


class GGUFFile:
    """Reads what the file says and knows nothing of models."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = _ArrayReader(path)
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            # What the reader meets when it runs over the end, or reads what is no GGUF.
            why = f"it is no GGUF file, or cut off ({error})"
            raise ModelRefused(path, f"{path.stat().st_size} bytes", why, "fetch it again") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._check_types()

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """By tensor, axes as in PyTorch (`[out, in]` for a linear layer)."""
        return {name: tuple(map(int, reversed(each.shape))) for name, each in self._tensors.items()}

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self._reader.fields)

    def get(self, key: str) -> Any:
        """The metadata value under `key`, a scalar, string or list: the file chooses, hence `Any`.

        None where there is none; the format has no null.
        """
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def read_tensor(self, name: str) -> torch.Tensor:
        """A tensor dequantised to fp32, in memory of its own."""
        tensor = self._tensors[name]
        return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))

    def _check_types(self) -> None:
        """Whether each type of quantisation that occurs can be undone, tried on one row."""
        tried = {tensor.tensor_type: tensor for tensor in self._tensors.values()}
        for kind, tensor in tried.items():
            try:
                dequantize(tensor.data[:1], kind)
            except NotImplementedError as error:
                what = f"tensor {tensor.name} of type {kind.name}"
                remedy = "take a file quantised as Q8_0, Q4_K_M or F16"
                raise ModelRefused(self.path, what, "it can't be dequantised here", remedy) from error


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
