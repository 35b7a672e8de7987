"""What the demo itself has to know of a model: its tokens, and the size of a frame of its KV."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jinja2.exceptions import TemplateError

import engine.models
from engine.config import ModelConfig
from engine.models import TINY, ModelNotFoundError
from engine.refused import ModelRefused, TokenizerRefused
from kvstore.demo.children import DemoRefused
from kvstore.demo.plan import ANSWER_TOKENS, BLOCK_TOKENS, PROMPT_TOKENS

__all__ = ["Model", "Tokenizer", "open_model"]


class Tokenizer(Protocol):
    """What of `engine.tokenizer.Tokenizer` is needed here."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def encode(self, text: str) -> list[int]: ...

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of a conversation, up to where the answer begins."""
        ...


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    tokenizer: Tokenizer
    # Bytes from one frame to the next, so that a tier of so many frames can be asked for.
    frame_bytes: int


def open_model(name: str) -> Model:
    """A name or a path, as `engine.models` has it; of `tiny`, random weights, the words are bytes.

    Raises DemoRefused for one that is not there, that the engine does not run, that has no chat template, or
    whose context is too short for the plan.
    """
    if name == "tiny":
        return Model(name, ByteTokenizer(), _frame_bytes(TINY))
    try:
        model = engine.models.open_model(name)
        tokenizer = model.load_tokenizer()
        tokenizer.render([{"role": role, "content": "Hello"} for role in ("user", "assistant", "user")])
    except TemplateError as error:
        raise DemoRefused(f"--model {name}: its chat template refuses a conversation: {error}") from error
    except (ModelNotFoundError, ModelRefused, TokenizerRefused) as error:
        raise DemoRefused(str(error)) from error
    most = PROMPT_TOKENS[-1] + ANSWER_TOKENS
    if model.config.context_length < most:
        raise DemoRefused(
            f"--model {name}: its context of {model.config.context_length} tokens is too short for "
            f"conversations of {most}; remedy: choose a model with a longer one"
        )
    return Model(name, tokenizer, _frame_bytes(model.config))


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

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        turns = [f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages]
        return "".join(turns) + "<|im_start|>assistant\n"

    def _encode_piece(self, piece: str) -> list[int]:
        if piece in self.CONTROL:
            return [256 + self.CONTROL.index(piece)]
        return list(piece.encode())
