"""The tokens that each session's answers were made of, to be put back where their text returns.

A client sends a conversation back as text. Tokenised again, an answer often comes out as other tokens than
those that were generated, and from there on nothing is found in the cache. So the server remembers of each
answer its tokens, under what came before it and what it said, and puts them in where both are the same. Text
that was edited matches nothing from there on, and is tokenised. A session is asked for by name and sees its
own answers alone, so what one client did never changes what another gets. See docs/adr/0016.
Tests: tests/engine/server/test_sessions.py.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Piece", "SessionTokens"]

# Text to be tokenised, or tokens as they were generated.
Piece = str | list[int]

# An answer that hardly anybody comes back to is not worth the search: of a session the last so many are kept.
ANSWERS_MAX = 512


@dataclass(frozen=True, slots=True)
class _Answer:
    # Characters of its prompt, and of itself; and a hash of both together.
    prompt_length: int
    length: int
    digest: bytes
    tokens: "array[int]"


@dataclass(slots=True)
class _Session:
    # In the order in which they came, by where they stand and what they are.
    answers: "OrderedDict[tuple[int, bytes], _Answer]" = field(default_factory=OrderedDict)

    @property
    def token_count(self) -> int:
        return sum(len(answer.tokens) for answer in self.answers.values())


class SessionTokens:
    """Bounded by the tokens of all sessions; the session that was used longest ago is forgotten first."""

    def __init__(self, tokens_max: int) -> None:
        self._tokens_max = tokens_max
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self.token_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def note(self, session: str, prompt: str, answer: str, tokens: Sequence[int]) -> None:
        """`answer` is the text of `tokens`, or all of it that they make up whole."""
        if not session or not tokens or len(tokens) > self._tokens_max:
            return
        kept = self._sessions.setdefault(session, _Session())
        self._sessions.move_to_end(session)
        digest = _digest(prompt + answer)
        if (len(prompt), digest) in kept.answers:
            # The first stays: later turns hang on it.
            return
        kept.answers[len(prompt), digest] = _Answer(len(prompt), len(answer), digest, array("i", tokens))
        self.token_count += len(tokens)
        if len(kept.answers) > ANSWERS_MAX:
            _, oldest = kept.answers.popitem(last=False)
            self.token_count -= len(oldest.tokens)
        while self.token_count > self._tokens_max:
            _, gone = self._sessions.popitem(last=False)
            self.token_count -= gone.token_count

    def split(self, session: str, text: str) -> list[Piece]:
        """The text in pieces: answers that the session knows as their tokens, all else as it is."""
        kept = self._sessions.get(session)
        if kept is None:
            return [text]
        self._sessions.move_to_end(session)
        pieces: list[Piece] = []
        begin = 0
        for answer in _found(kept, text):
            if answer.prompt_length >= begin:
                pieces += [text[begin : answer.prompt_length], answer.tokens.tolist()]
                begin = answer.prompt_length + answer.length
        return [*pieces, text[begin:]]


def _found(session: _Session, text: str) -> list[_Answer]:
    """Those that this text begins with, by their places; of several in one place the longest first."""
    hasher, hashed = hashlib.sha256(), 0
    found = []
    for answer in sorted(session.answers.values(), key=lambda each: each.prompt_length + each.length):
        end = answer.prompt_length + answer.length
        if end > len(text):
            break
        # One pass over the text, however many answers there are.
        hasher.update(_bytes(text[hashed:end]))
        hashed = end
        if hasher.digest() == answer.digest:
            found.append(answer)
    return sorted(found, key=lambda each: (each.prompt_length, -each.length))


def _digest(text: str) -> bytes:
    return hashlib.sha256(_bytes(text)).digest()


def _bytes(text: str) -> bytes:
    """A text may have marks (`controls.py`), which UTF-8 can't hold."""
    return text.encode("utf-8", "surrogatepass")
