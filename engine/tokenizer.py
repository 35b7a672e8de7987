"""Text to tokens and back, from the vocabulary that the model's own file carries.

Covers the byte-level BPE of SmolLM2 (GGUF: model `gpt2`, pre-tokenizer `smollm`), its control tokens and its
chat template. Does not cover streaming: a token may end in the middle of a character, and `decode` shows that
as U+FFFD. Tests: tests/engine/test_tokenizer.py.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as _Tokenizer
from tokenizers.models import BPE

from engine.checkpoint import Checkpoint

__all__ = ["Tokenizer"]

# GGUF's token types; all others are plain pieces of text.
_CONTROL = 3
# Ends a text in pre-training; a chat model may still say it instead of its end of turn.
_END_OF_TEXT = "<|endoftext|>"


class Tokenizer:
    """The tokenizer of one checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        kind = (checkpoint.get("tokenizer.ggml.model"), checkpoint.get("tokenizer.ggml.pre"))
        if kind != ("gpt2", "smollm"):
            raise ValueError(f"{checkpoint.path}: tokenizer {kind} is not supported, only ('gpt2', 'smollm')")
        tokens: list[str] = checkpoint.get("tokenizer.ggml.tokens")
        types: list[int] = checkpoint.get("tokenizer.ggml.token_type")
        merges: list[str] = checkpoint.get("tokenizer.ggml.merges")
        control = [token for token, token_type in zip(tokens, types, strict=True) if token_type == _CONTROL]
        eos: int = checkpoint.get("tokenizer.ggml.eos_token_id")
        bos: int = checkpoint.get("tokenizer.ggml.bos_token_id")

        self.vocab_size = len(tokens)
        self.eos_ids = frozenset({eos} | {tokens.index(_END_OF_TEXT)} if _END_OF_TEXT in control else {eos})
        self._bpe = _build_bpe(tokens, merges, control)
        self._names = {"bos_token": tokens[bos], "eos_token": tokens[eos]}
        # Sandboxed because a template is a program that came with a file.
        sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        sandbox.globals["raise_exception"] = _raise_exception
        self._template = sandbox.from_string(checkpoint.get("tokenizer.chat_template"))

    def encode(self, text: str) -> list[int]:
        """Tokens of a text and no others. A control token's name in the text becomes that token."""
        return self._bpe.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, control tokens left out."""
        return self._bpe.decode(list(ids), skip_special_tokens=True)

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> list[int]:
        """Tokens of a conversation, each message with `role` and `content`.

        With `add_generation_prompt` they end where the assistant's answer begins. The template puts the
        model's own system message first if the conversation brings none.
        """
        text = self._template.render(
            messages=messages, add_generation_prompt=add_generation_prompt, **self._names
        )
        return self.encode(text)


def _build_bpe(tokens: list[str], merges: list[str], control: list[str]) -> _Tokenizer:
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    bpe = _Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=pairs))
    # `smollm`: every digit a piece of its own, then GPT-2's pattern over bytes.
    digits = pre_tokenizers.Digits(individual_digits=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in control])
    return bpe


def _raise_exception(message: str) -> NoReturn:
    """What chat templates call to refuse a conversation."""
    raise TemplateError(message)
