"""`/v1/chat/completions`: a conversation in, the assistant's next message out.

Tests: tests/engine/server/test_chat.py.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from engine.server.asked import Asked, Conversation, Usage
from engine.server.errors import invalid
from engine.server.fields import Fields
from engine.server.limits import Limits
from engine.server.parameters import read_parameters
from engine.server.words import Message

__all__ = ["read_chat"]

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def read_chat(fields: Fields, limits: Limits) -> Asked:
    messages = _read_messages(fields, limits)
    parameters = read_parameters(fields, limits)
    return Asked(
        prompts=[Conversation(messages)],
        field="messages",
        parameters=parameters,
        turn=1 + sum(message["role"] == "assistant" for message in messages),
        answer_tokens_default=0,
        shape=ChatShape(parameters.model, tells_usage=parameters.tells_usage),
    )


def _read_messages(fields: Fields, limits: Limits) -> list[Message]:
    values = fields.take("messages")
    if values is None:
        raise invalid("You must provide a messages parameter.", "messages", "missing_parameter")
    if not isinstance(values, list):
        raise fields.wrong("messages", "a list of messages", values)
    if not values:
        raise invalid("messages must have at least one message.", "messages", "invalid_value")
    if len(values) > limits.messages:
        raise invalid(f"messages may be at most {limits.messages}.", "messages", "array_above_max_length")
    return [_read_message(value, f"messages[{place}]") for place, value in enumerate(values)]


def _read_message(value: Any, path: str) -> Message:
    if not isinstance(value, dict):
        raise invalid(f"{path} must be an object.", path, "invalid_type")
    fields = Fields(value, f"{path}.")
    role = fields.text("role")
    if role not in ROLES:
        raise invalid(f"{path}.role must be one of {', '.join(ROLES)}.", f"{path}.role", "invalid_value")
    if "content" not in fields and role != "assistant":
        what = f"{path}.content must be a string or a list of parts; it is missing."
        raise invalid(what, f"{path}.content", "missing_parameter")
    content = _read_content(fields, path)
    # Of no effect; as clients send back what they were sent.
    fields.text("name")
    fields.text("refusal")
    fields.take("annotations")
    if fields.take("tool_calls", []) != []:
        raise invalid(
            "Tools are not supported by this server.", f"{path}.tool_calls", "unsupported_parameter"
        )
    fields.end()
    return {"role": ROLES[role], "content": content}


def _read_content(fields: Fields, path: str) -> str:
    """A string, or parts of text one after the other."""
    content = fields.take("content", "")
    if not isinstance(content, list):
        if not isinstance(content, str):
            raise fields.wrong("content", "a string or a list of parts", content)
        return content
    texts = []
    for place, part in enumerate(content):
        where = f"{path}.content[{place}]"
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise invalid(f"{where}: only parts of type text are supported.", where, "invalid_value")
        texts.append(part["text"])
    return "".join(texts)


class ChatShape:
    """See `Shape`."""

    def __init__(self, model: str, *, tells_usage: bool) -> None:
        self._head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self._usage = {"usage": None} if tells_usage else {}

    def whole(self, texts: Sequence[str], finishes: Sequence[str], usage: Usage) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": finish,
            }
            for index, (text, finish) in enumerate(zip(texts, finishes, strict=True))
        ]
        return {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage.to_json(),
        }

    def first(self, answer: int) -> dict[str, Any] | None:
        return self._chunk(answer, {"role": "assistant", "content": ""}, None)

    def piece(self, answer: int, text: str) -> dict[str, Any]:
        return self._chunk(answer, {"content": text}, None)

    def last(self, answer: int, finish: str) -> dict[str, Any]:
        return self._chunk(answer, {}, finish)

    def usage(self, usage: Usage) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage.to_json()}

    def _chunk(self, answer: int, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": answer, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice], **self._usage}
