"""A request to one of the endpoints, read and checked; not yet in tokens.

`chat.py` and `completions.py` each read their own fields into this, and tell the answer in their own shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.server.parameters import Parameters
from engine.server.words import Message

__all__ = ["Asked", "Conversation", "Prompt", "Shape", "Usage"]


@dataclass(frozen=True, slots=True)
class Conversation:
    messages: Sequence[Message]


# Text, tokens, or a conversation.
Prompt = str | list[int] | Conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    def to_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Shape(Protocol):
    """How an endpoint tells its answers, as JSON."""

    def whole(self, texts: Sequence[str], finishes: Sequence[str], usage: Usage) -> dict[str, Any]: ...

    def first(self, answer: int) -> dict[str, Any] | None:
        """The event that opens an answer, where there is one."""
        ...

    def piece(self, answer: int, text: str) -> dict[str, Any]: ...

    def last(self, answer: int, finish: str) -> dict[str, Any]: ...

    def usage(self, usage: Usage) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    prompts: Sequence[Prompt]
    # The field that has them, for messages.
    field: str
    parameters: Parameters
    # Answers of this conversation so far.
    turn: int
    # Of an answer where the request names no number; 0: what the server's limits say.
    answer_tokens_default: int
    shape: Shape

    @property
    def answers(self) -> int:
        return len(self.prompts) * self.parameters.samples

    @property
    def sequences(self) -> int:
        """That it takes to compute them."""
        return len(self.prompts) * max(self.parameters.samples, self.parameters.beams)
