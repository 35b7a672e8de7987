"""Text to tokens and back, and conversations to tokens, as the model's own files have it.

The tokenizer proper is one of `tokenizers`; where it comes from: engine/formats. Does not cover streaming: a
token may end in the middle of a character, and `decode` shows that as U+FFFD.
Tests: tests/engine/test_tokenizer.py, test_tokenizer_folder.py, test_tokenizer_gguf.py.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as _Tokenizer

from engine.refused import TokenizerRefused

__all__ = ["Tokenizer"]


class Tokenizer:
    """The tokenizer of one model."""

    def __init__(
        self,
        path: Path,
        encoder: _Tokenizer,
        *,
        template: str | None,
        names: Mapping[str, str],
        eos_ids: frozenset[int],
    ) -> None:
        """
        path      where it comes from, for refusals
        template  of conversations, in Jinja as `transformers` runs it; None if the model has none
        names     `bos_token`, `eos_token`, … as the template may call them
        eos_ids   the tokens that end an answer
        """
        self._path = path
        self._encoder = encoder
        self._names = names
        self.eos_ids = eos_ids
        self.vocab_size: int = encoder.get_vocab_size()
        # Texts that become control tokens.
        added = encoder.get_added_tokens_decoder().values()
        self.control_names = frozenset(token.content for token in added if token.special)
        try:
            self._template = None if template is None else _make_sandbox().from_string(template)
        except TemplateSyntaxError as error:
            what, why = f"chat template, line {error.lineno}", f"it can't be read ({error.message})"
            raise TokenizerRefused(path, what, why, "take a model whose template is plain Jinja") from error

    def encode(self, text: str) -> list[int]:
        """Tokens of a text and no others. A control token's name in the text becomes that token."""
        return self._encoder.encode(text, add_special_tokens=False).ids

    def encode_prompt(self, text: str) -> list[int]:
        """A text that stands alone, with what the model expects around one; for many a first token."""
        return self._encoder.encode(text, add_special_tokens=True).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, control tokens left out."""
        return self._encoder.decode(list(ids), skip_special_tokens=True)

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> list[int]:
        """Tokens of a conversation; see `render`."""
        return self.encode(self.render(messages, add_generation_prompt))

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a conversation, each message with `role` and `content`.

        With `add_generation_prompt` it ends where the assistant's answer begins. Some templates put the
        model's own system message first if the conversation brings none. Raises `TokenizerRefused` if the
        model has no template, and jinja2's `TemplateError` if the template refuses the conversation.
        """
        if self._template is None:
            remedy = "send prompts as text or tokens, or choose a model that is tuned for chat"
            raise TokenizerRefused(self._path, "chat template", "the model has none", remedy)
        return self._template.render(
            messages=messages, tools=None, add_generation_prompt=add_generation_prompt, **self._names
        )


def _make_sandbox() -> ImmutableSandboxedEnvironment:
    """What templates may call, as in `transformers`. A sandbox: a template is a program from a file."""
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _raise_exception
    sandbox.globals["strftime_now"] = _strftime_now
    return sandbox


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Jinja's own filter would write `<` as an escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _raise_exception(message: str) -> NoReturn:
    """What chat templates call to refuse a conversation."""
    raise TemplateError(message)
