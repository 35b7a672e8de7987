"""What a client was told: a whole answer, a stream of events, an error, or the beginning of any of these."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.storm.wire import Line

__all__ = ["Right", "Told", "read_told"]

DONE = b"[DONE]"


@dataclass(slots=True)
class Told:
    status: int = 0
    # OpenAI's code of an error, in an answer or in a stream; empty: none.
    error: str = ""
    texts: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    # To its end, be that an error.
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """The answers that a request has, whoever asks and whatever else goes on."""

    texts: tuple[str, ...]
    finishes: tuple[str, ...]
    prompt_tokens: int
    completion_tokens: int

    @classmethod
    def of(cls, told: Told) -> "Right":
        if told.status != 200 or told.error or not told.is_whole:
            raise ValueError(f"a quiet server has answered {told}")
        places = sorted(told.texts)
        return cls(
            texts=tuple(told.texts[place] for place in places),
            finishes=tuple(told.finishes[place] for place in places),
            prompt_tokens=told.prompt_tokens,
            completion_tokens=told.completion_tokens,
        )

    def fault(self, told: Told) -> str:
        """What is wrong with what was told; empty: nothing is, as far as it goes."""
        for place, text in told.texts.items():
            right = self.texts[place]
            if not right.startswith(text):
                return f"answer {place} is {text[-80:]!r} at its end, and not the beginning of {right!r}"
        if not told.is_whole or told.error:
            return ""
        texts = tuple(told.texts.get(place, "") for place in range(len(self.texts)))
        finishes = tuple(told.finishes.get(place, "") for place in range(len(self.finishes)))
        counts = (told.prompt_tokens, told.completion_tokens)
        if (texts, finishes, counts) != (
            self.texts,
            self.finishes,
            (self.prompt_tokens, self.completion_tokens),
        ):
            return f"it has {texts}, {finishes}, {counts} tokens, and not {self}"
        return ""


async def read_told(line: Line, told: Told, *, events_max: int = 1 << 30) -> None:
    """Into `told`, so that what came before a failure is there. Stops after so many events of a stream."""
    told.status = await line.status()
    rest, events = b"", 0
    async for piece in line.pieces():
        *lines, rest = (rest + piece).split(b"\n\n")
        for each in lines:
            content = each.removeprefix(b"data: ")
            if content == DONE:
                told.is_whole = True
            else:
                _take(told, json.loads(content))
            events += 1
        if events >= events_max:
            return
    if rest:
        _take(told, json.loads(rest))
        told.is_whole = True


def _take(told: Told, body: Mapping[str, Any]) -> None:
    if "error" in body:
        told.error, told.is_whole = body["error"]["code"] or body["error"]["type"], True
        return
    for choice in body["choices"]:
        said = choice.get("delta") or choice.get("message") or choice
        place = choice["index"]
        told.texts[place] = told.texts.get(place, "") + (said.get("content") or said.get("text") or "")
        if choice["finish_reason"]:
            told.finishes[place] = choice["finish_reason"]
    if usage := body.get("usage"):
        told.prompt_tokens, told.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
