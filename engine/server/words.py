"""What the server asks of a tokenizer, whichever model it belongs to."""

from collections.abc import Mapping, Sequence
from typing import Protocol

__all__ = ["Message", "Words"]

# With `role` and `content`.
Message = Mapping[str, str]


class Words(Protocol):
    """Text to tokens and back. Calls may come from several threads at once."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def control_names(self) -> frozenset[str]:
        """Texts that `encode` takes for control tokens."""
        ...

    def encode(self, text: str) -> list[int]:
        """A control token's name in the text becomes that token."""
        ...

    def encode_prompt(self, text: str) -> list[int]:
        """A text that stands alone and is no conversation: for many models a first token goes before it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Control tokens left out; U+FFFD for bytes that are no text, or not yet."""
        ...

    def render(self, messages: Sequence[Message]) -> str:
        """The text of a conversation, up to where the assistant's answer begins.

        Raises jinja2.TemplateError for one that the model's template refuses, and TokenizerRefused where the
        model has no template.
        """
        ...
