"""`/v1/completions`: text or tokens in, what comes next out.

Tests: tests/engine/server/test_completions.py.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from engine.server.asked import Asked, Prompt, Usage
from engine.server.errors import invalid
from engine.server.fields import Fields
from engine.server.limits import Limits
from engine.server.parameters import read_parameters

__all__ = ["read_completion"]

# OpenAI's, where a request names none.
ANSWER_TOKENS = 16


def read_completion(fields: Fields, limits: Limits) -> Asked:
    prompts = _read_prompts(fields)
    parameters = read_parameters(fields, limits)
    asked = Asked(
        prompts=prompts,
        field="prompt",
        parameters=parameters,
        turn=1,
        answer_tokens_default=ANSWER_TOKENS,
        shape=CompletionShape(parameters.model, tells_usage=parameters.tells_usage),
    )
    if asked.sequences > limits.choices:
        raise invalid(
            f"{len(prompts)} prompts with {asked.sequences // len(prompts)} answers each are more than the "
            f"{limits.choices} answers that one request may have.",
            "prompt",
            "array_above_max_length",
        )
    return asked


def _read_prompts(fields: Fields) -> list[Prompt]:
    """One text, one list of tokens, or a list of either."""
    value = fields.take("prompt")
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if _are_tokens(value):
            return [value]
        if all(isinstance(each, str) for each in value) or all(map(_are_tokens, value)):
            return value
    raise invalid("prompt must be a string, a list of tokens, or a list of either.", "prompt", "invalid_type")


def _are_tokens(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, int) and not isinstance(each, bool) for each in value)
    )


class CompletionShape:
    """See `Shape`."""

    def __init__(self, model: str, *, tells_usage: bool) -> None:
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._usage = {"usage": None} if tells_usage else {}

    def whole(self, texts: Sequence[str], finishes: Sequence[str], usage: Usage) -> dict[str, Any]:
        choices = [
            _choice(index, text, finish)
            for index, (text, finish) in enumerate(zip(texts, finishes, strict=True))
        ]
        return {**self._head, "choices": choices, "usage": usage.to_json()}

    def first(self, answer: int) -> dict[str, Any] | None:
        return None

    def piece(self, answer: int, text: str) -> dict[str, Any]:
        return {**self._head, "choices": [_choice(answer, text, None)], **self._usage}

    def last(self, answer: int, finish: str) -> dict[str, Any]:
        return {**self._head, "choices": [_choice(answer, "", finish)], **self._usage}

    def usage(self, usage: Usage) -> dict[str, Any]:
        return {**self._head, "choices": [], "usage": usage.to_json()}


def _choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
