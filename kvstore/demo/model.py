"""What the demo itself has to know of a model: its tokens, and the size of a frame of its KV."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

import engine.models
from engine.config import ModelConfig
from engine.models import TINY, ModelNotFoundError
from kvstore.demo.children import DemoRefused
from kvstore.demo.plan import BLOCK_TOKENS

__all__ = ["Model", "Tokenizer", "open_model"]


class Tokenizer(Protocol):
    """What of `engine.tokenizer.Tokenizer` is needed here."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def encode(self, text: str) -> list[int]: ...

    def chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    tokenizer: Tokenizer
    # Bytes from one frame to the next, so that a tier of so many frames can be asked for.
    frame_bytes: int


def open_model(name: str) -> Model:
    """`smollm2`, or `tiny`: random weights, for tests."""
    if name == "tiny":
        return Model(name, ByteTokenizer(), _frame_bytes(TINY))
    if name != "smollm2":
        raise DemoRefused(f"--model {name!r}: no such model; remedy: choose smollm2 or tiny")
    try:
        model = engine.models.open_model(name)
    except ModelNotFoundError as error:
        raise DemoRefused(str(error)) from error
    return Model(name, model.load_tokenizer(), _frame_bytes(model.config))


def _frame_bytes(config: ModelConfig) -> int:
    return config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=torch.float32).frame_stride_bytes


class ByteTokenizer:
    """One token a byte, for the tiny model, whose words mean nothing anyway."""

    CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    # The tiny model may say anything; its answers are all of full length.
    eos_ids: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        pieces = re.split("(" + "|".join(map(re.escape, self.CONTROL)) + ")", text)
        return [token for piece in pieces for token in self._encode_piece(piece)]

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> list[int]:
        turns = [f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages]
        return self.encode("".join(turns) + ("<|im_start|>assistant\n" if add_generation_prompt else ""))

    def _encode_piece(self, piece: str) -> list[int]:
        if piece in self.CONTROL:
            return [256 + self.CONTROL.index(piece)]
        return list(piece.encode())
