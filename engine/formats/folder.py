"""A model in a folder of Hugging Face's form: config.json, *.safetensors, perhaps an index, a tokenizer.

Headers are read and checked when the folder is opened; tensors when they are asked for. Nothing is unpickled.
Tests: tests/engine/test_families.py, test_folder.py.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.formats.folder_config import read_config
from engine.formats.folder_tokenizer import read_tokenizer
from engine.formats.json_file import read_json
from engine.formats.tensors import OUTPUT, check_tensors
from engine.refused import ModelRefused
from engine.tokenizer import Tokenizer

__all__ = ["PICKLE_REMEDY", "Folder"]

_INDEX = "model.safetensors.index.json"
_PICKLED = ("*.bin", "*.pt", "*.pth")
PICKLE_REMEDY = (
    "convert to safetensors, where you trust the file: transformers' "
    "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(other_folder)"
)
_DTYPES = ("F32", "BF16", "F16")
# Frequencies that old checkpoints carry; they follow from the config.
_IGNORED = "rotary_emb.inv_freq"


class Folder:
    """Opens all files and checks them whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config = path / "config.json"
        if not config.is_file():
            remedy = "name a GGUF file, or a folder in Hugging Face's form"
            raise ModelRefused(path, "config.json", "there is no such file", remedy)
        values = read_json(config)
        # By tensor, the open file that it is in.
        self._files = _open_tensors(path)
        shapes = {name: self._check_type(name) for name in self._files}
        self.config = read_config(config, values, has_output=OUTPUT in shapes)
        check_tensors(path, self.config, shapes)

    def read_tensor(self, name: str) -> torch.Tensor:
        """A view of the file, in the type that it has there."""
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor

    def load_tokenizer(self) -> Tokenizer:
        return read_tokenizer(self.path)

    def _check_type(self, name: str) -> tuple[int, ...]:
        """The tensor's shape."""
        described = self._files[name].get_slice(name)
        if described.get_dtype() not in _DTYPES:
            what, why = (
                f"tensor {name} of type {described.get_dtype()}",
                "quantised weights are not supported",
            )
            remedy = "take the model in BF16, F16 or F32, or quantised as a GGUF file"
            raise ModelRefused(self.path, what, why, remedy)
        return tuple(described.get_shape())


def _open_tensors(folder: Path) -> dict[str, Any]:
    """The open file of each tensor; `Any` is safetensors' own class, which has no types."""
    if (folder / _INDEX).is_file():
        return _open_index(folder)
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
        if pickled:
            raise ModelRefused(
                folder, pickled[0], "pickled weights are programs, and not read", PICKLE_REMEDY
            )
        raise ModelRefused(folder, "*.safetensors", "there is no such file", "fetch the model's weights")
    tensors: dict[str, Any] = {}
    for path in paths:
        file = _open(path)
        if doubled := sorted(tensors.keys() & file.keys()):
            why = f"it is in {path.name} and in another file, and no {_INDEX} tells which one counts"
            raise ModelRefused(folder, f"tensor {doubled[0]}", why, "take one of the files out of the folder")
        tensors |= dict.fromkeys(_counted(file.keys()), file)
    return tensors


def _open_index(folder: Path) -> dict[str, Any]:
    index = folder / _INDEX
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ModelRefused(
            index,
            f"weight_map = {json.dumps(places)[:60]}",
            "file names by tensor are needed",
            "fetch it again",
        )
    files: dict[str, Any] = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            why = "it is no *.safetensors of this folder"
            raise ModelRefused(index, f"weight_map names {name!r}", why, PICKLE_REMEDY)
        if not (folder / name).is_file():
            raise ModelRefused(index, f"weight_map names {name!r}", "there is no such file", "fetch it too")
        files[name] = _open(folder / name)
    there = {name: frozenset(file.keys()) for name, file in files.items()}
    for tensor, name in places.items():
        if tensor not in there[name]:
            why = f"the index says that it is in {name}, and it is not"
            raise ModelRefused(index, f"tensor {tensor}", why, "fetch index and weights of the same model")
    return {tensor: files[places[tensor]] for tensor in _counted(places)}


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        why = f"it is no safetensors file, or cut off ({error})"
        raise ModelRefused(path, f"{path.stat().st_size} bytes", why, "fetch it again") from error


def _counted(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.endswith(_IGNORED)]
