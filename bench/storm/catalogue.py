"""What is asked in a storm, by a seed: requests with one right answer each, and talks of several turns."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.storm.telling import Right

__all__ = ["CHAT", "COMPLETIONS", "Ask", "Talk", "draw_asks", "draw_talks"]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = "the a on in storm sea ship wind sail anchor harbour rope deck crew night north ähnlich 海 🌊"
WORDS = TEXT.split()
# What the tiny model says is letters at random: single ones come up early, so that some answers stop.
STOPS = (["e"], ["q", "zz"], ["\n"], ["th", "on"])


@dataclass(slots=True, kw_only=True)
class Ask:
    """A request, whole; `right` is known when it has been asked of a quiet server."""

    path: str
    body: dict[str, Any]
    right: Right | None = None

    @property
    def is_search(self) -> bool:
        return bool(self.body.get("use_beam_search"))


@dataclass(slots=True, kw_only=True)
class Talk:
    """What a user says turn by turn, and the answers, which each turn sends back."""

    says: Sequence[str]
    options: dict[str, Any]
    rights: list[Right] = field(default_factory=list)

    def ask(self, turn: int, session: str) -> Ask:
        messages = [{"role": "system", "content": "You are at sea. " * 4}]
        for said, answered in zip(self.says[:turn], self.rights, strict=False):
            messages.append({"role": "user", "content": said})
            messages.append({"role": "assistant", "content": answered.texts[0]})
        messages.append({"role": "user", "content": self.says[turn]})
        right = self.rights[turn] if turn < len(self.rights) else None
        body = {**self.options, "messages": messages, "session": session}
        return Ask(path=CHAT, body=body, right=right)


def draw_asks(draw: random.Random, count: int, model: str, prompt_words_max: int) -> list[Ask]:
    """Some begin alike: there is one beginning for every four."""
    begins = [_words(draw, prompt_words_max // 2) for _ in range(max(1, count // 4))]
    return [_draw_ask(draw, model, draw.choice(begins), prompt_words_max // 2) for _ in range(count)]


def draw_talks(draw: random.Random, count: int, model: str, words_max: int) -> list[Talk]:
    return [
        Talk(
            says=[_words(draw, words_max) for _ in range(draw.randint(2, 4))],
            options={"model": model, "max_tokens": draw.randint(5, 30), **_sampling(draw)},
        )
        for _ in range(count)
    ]


def _draw_ask(draw: random.Random, model: str, begin: str, words_max: int) -> Ask:
    text = " ".join([begin, _words(draw, words_max)][draw.randint(0, 1) :])
    body: dict[str, Any] = {"model": model, "max_tokens": draw.choice([1, 8, 20, 20, 40, 90])}
    kind = draw.choice(["plain", "plain", "plain", "several", "search", "stop"])
    if kind == "search":
        body |= {"use_beam_search": True, "best_of": draw.randint(2, 4), "max_tokens": draw.randint(2, 12)}
        body["n"] = draw.randint(1, body["best_of"])
    else:
        body |= _sampling(draw)
    if kind == "several":
        body["n"] = draw.randint(2, 4)
    if kind == "stop":
        body["stop"] = draw.choice(STOPS)
    if draw.random() < 0.3:
        return Ask(path=COMPLETIONS, body={**body, "prompt": text})
    return Ask(path=CHAT, body={**body, "messages": [{"role": "user", "content": text}]})


def _sampling(draw: random.Random) -> dict[str, Any]:
    if draw.random() < 0.4:
        return {"temperature": 0}
    return {
        "temperature": draw.choice([0.3, 1.0, 2.0]),
        "top_p": draw.choice([0.5, 1.0]),
        "seed": draw.randint(-1000, 1000),
    }


def _words(draw: random.Random, most: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))
