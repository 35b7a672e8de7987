"""What is asked of the server: conversations, and prompts of exactly so many tokens.

The conversations are recorded ones, of the files in `shared/data/text` beside the repository or above it: a
part of them of an agent with one long system prompt, the others of people and an assistant, as paths of trees
whose first messages are the same. Where these files aren't there, or what reads them is not installed, a
generator makes some of the same shape by seed.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path

from bench.report import ROOT
from engine.models import open_model
from engine.server.tiny_words import TinyWords
from engine.server.words import Words
from kvstore.planner.lines import read_lines

__all__ = ["Prompts", "Talk", "find_texts", "load_words", "made_talks", "read_talks", "talks"]

AGENT, PEOPLE = "tau_airline_gpt4o.jsonl.zst", "oasst_en100_paths.jsonl.zst"
# Characters of a message and of a system prompt: so that several turns stay short of a reserved context.
MESSAGE_CHARACTERS_MAX, SYSTEM_CHARACTERS_MAX = 1200, 4000
# That prompts are cut from.
TALKS, TURNS = 160, 4
MADE_WORDS = 800
SENTENCE_WORDS = (6, 16)
SYSTEM_SENTENCES = 40
MESSAGE_SENTENCES = (1, 6)
SYLLABLES = ("ka", "ro", "mi", "ten", "sal", "ver", "don", "li", "pra", "su", "or", "ne")


@dataclass(frozen=True, slots=True)
class Talk:
    """What one user says, turn by turn; empty `system`: there is no such prompt."""

    system: str
    messages: tuple[str, ...]


def load_words(model: str) -> Words:
    return TinyWords() if model == "tiny" else open_model(model).load_tokenizer()


def find_texts() -> Path | None:
    """The folder with the recorded conversations, if there is one that can be read."""
    folders = (parent / "shared" / "data" / "text" for parent in (ROOT, *ROOT.parents))
    found = next((folder for folder in folders if (folder / AGENT).is_file()), None)
    return found if find_spec("zstandard") is not None else None


def talks(count: int, turns: int, seed: int) -> list[Talk]:
    """So many, each of up to `turns` turns: recorded ones where they are there."""
    folder = find_texts()
    return made_talks(count, turns, seed) if folder is None else read_talks(folder, count, turns)


def read_talks(folder: Path, count: int, turns: int) -> list[Talk]:
    """Every second one with the agent, the others of people who have more than one turn."""
    agent = (talk for talk in _recorded(folder / AGENT, turns) if talk.system)
    people = (talk for talk in _recorded(folder / PEOPLE, turns) if len(talk.messages) > 1)
    pairs = zip(agent, people, strict=False)
    return list(islice((talk for pair in pairs for talk in pair), count))


def made_talks(count: int, turns: int, seed: int) -> list[Talk]:
    """Every second one begins with the same system prompt."""
    made = random.Random(seed)
    words = ["".join(made.choices(SYLLABLES, k=made.randint(1, 3))) for _ in range(MADE_WORDS)]
    system = _sentences(made, words, SYSTEM_SENTENCES)
    return [
        Talk(
            system if place % 2 == 0 else "",
            tuple(_sentences(made, words, made.randint(*MESSAGE_SENTENCES)) for _ in range(turns)),
        )
        for place in range(count)
    ]


def _recorded(path: Path, turns: int) -> Iterator[Talk]:
    for _, line in read_lines(path):
        messages = json.loads(line)["messages"]
        system = next((each["content"] for each in messages if each["role"] == "system"), "")
        said = [each["content"] for each in messages if each["role"] == "user" and each["content"]]
        shortened = tuple(text[:MESSAGE_CHARACTERS_MAX] for text in said[:turns])
        yield Talk(system[:SYSTEM_CHARACTERS_MAX], shortened)


def _sentences(made: random.Random, words: Sequence[str], count: int) -> str:
    lines = (" ".join(made.choices(words, k=made.randint(*SENTENCE_WORDS))) for _ in range(count))
    return " ".join(f"{line.capitalize()}." for line in lines)


class Prompts:
    """Tokens of these conversations' text, in pieces none of which begins as another one does."""

    def __init__(self, words: Words, seed: int = 1) -> None:
        said = dict.fromkeys(text for talk in talks(TALKS, TURNS, seed) for text in talk.messages)
        self._tokens = words.encode("\n".join(said))
        # No two pieces begin with the same two tokens.
        self._begins = product(sorted(set(self._tokens)), repeat=2)
        self._place = 0

    def take(self, count: int) -> tuple[int, ...]:
        """The next piece of exactly so many tokens."""
        head = next(self._begins)[:count]
        tokens: list[int] = []
        while len(tokens) < count - len(head):
            part = self._tokens[self._place :][: count - len(head) - len(tokens)]
            tokens += part
            self._place = (self._place + len(part)) % len(self._tokens)
        return (*head, *tokens)
