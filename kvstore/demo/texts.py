"""What is talked about: the repository's own documents, cut to prompts of exactly known lengths.

Prompts are built from tokens, not from text: the prompt of a turn is the one before, the answer and what the
user adds, token for token, so that its prefix is exactly what the cache holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvstore.demo.children import DemoError
from kvstore.demo.model import Tokenizer

__all__ = ["Conversation", "Document", "read_documents"]

ROOT = Path(__file__).parents[2]
# Documents first; a clone has source code in any case.
PATTERNS = ("README.md", "ARCHITECTURE.md", "docs/**/*.md", "LICENSE", "protos/**/*.proto", "kvstore/**/*.py")
# Enough for three turns: a token is about four characters of English.
DOCUMENT_CHARS_MIN = 8_000

QUESTIONS = (
    "\n\nIn one sentence: what is this text about?",
    "\n\nThat was the next part of it. What does it add, in one sentence?",
    "\n\nThat was some more of it. Name one thing that it says.",
)
# Stand for what the user says and for what was answered, where a chat template writes around them.
SAID, ANSWERED = "(what the user says)", "(what was answered)"


@dataclass(frozen=True, slots=True)
class Document:
    name: str
    text: str


class Conversation:
    """One session: a document read piece by piece, with a question after each."""

    def __init__(self, document: Document, tokenizer: Tokenizer) -> None:
        self.name = document.name
        self._tokenizer = tokenizer
        self._rest = tokenizer.encode(document.text)
        # All tokens so far, as the next prompt will begin.
        self._history: list[int] = []

    def next_prompt(self, turn: int, token_count: int) -> tuple[int, ...]:
        """The prompt of this turn, filled up with the document to exactly this length."""
        encode = self._tokenizer.encode
        before, after = self._frame(turn)
        before = [*self._history, *before]
        after = [*encode(QUESTIONS[turn - 1]), *after]
        filling = token_count - len(before) - len(after)
        if not 0 < filling <= len(self._rest):
            raise DemoError(f"{self.name}: no room for a piece of the document, or none left")
        piece, self._rest = self._rest[:filling], self._rest[filling:]
        self._history = [*before, *piece, *after]
        return tuple(self._history)

    def take_answer(self, tokens: Sequence[int]) -> None:
        """What ended the answer is left out: the next turn's frame begins with it."""
        ended = bool(tokens) and tokens[-1] in self._tokenizer.eos_ids
        self._history += tokens[:-1] if ended else tokens

    def _frame(self, turn: int) -> tuple[list[int], list[int]]:
        """What the chat template writes before and after what the user says; later on, since the answer."""
        encode = self._tokenizer.encode
        said, answered = {"role": "user", "content": SAID}, {"role": "assistant", "content": ANSWERED}
        talk = [said, answered] * (turn - 1) + [said]
        before, is_found, after = self._tokenizer.render(talk).rpartition(SAID)
        if turn > 1:
            _, is_found, before = before.rpartition(ANSWERED) if is_found else ("", "", "")
        if not is_found:
            raise DemoError(f"the model's chat template doesn't write what is said in turn {turn} as it is")
        begin = encode(f"This is {self.name}:\n\n") if turn == 1 else []
        return [*encode(before), *begin], encode(after)


def read_documents(count: int) -> list[Document]:
    """The first so many documents of the repository that are long enough, each with a name of its own."""
    found: dict[str, Document] = {}
    for path in _files():
        text = path.read_text(encoding="utf-8", errors="replace")
        if len(text) >= DOCUMENT_CHARS_MIN:
            found.setdefault(path.name, Document(path.name, text))
        if len(found) == count:
            return list(found.values())
    raise DemoError(f"{ROOT} holds no {count} texts of {DOCUMENT_CHARS_MIN} characters or more")


def _files() -> Iterator[Path]:
    for pattern in PATTERNS:
        yield from sorted(path for path in ROOT.glob(pattern) if path.is_file())
