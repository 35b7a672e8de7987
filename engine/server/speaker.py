"""One answer: tokens in, text out, until it ends.

Tests: tests/engine/server/test_speaker.py.
"""

from collections.abc import Iterable, Sequence

from engine.server.inbox import End
from engine.server.stops import StopStrings
from engine.server.text import TextStream
from engine.server.words import Words

__all__ = ["Speaker"]


class Speaker:
    def __init__(self, words: Words, stops: Sequence[str]) -> None:
        self._eos_ids = words.eos_ids
        self._text = TextStream(words.decode)
        self._stops = StopStrings(stops)
        self._tokens: list[int] = []
        self._passed: list[str] = []
        # Tokens that were generated for it: with the one that ended it, and those of a stop string.
        self.token_count = 0
        # OpenAI's word for why it has ended; empty: it has not.
        self.finish = ""

    @property
    def text(self) -> str:
        return "".join(self._passed)

    @property
    def was_cut(self) -> bool:
        """By a stop string: the engine does not know."""
        return self._stops.found

    def hear(self, tokens: Iterable[int], end: End | None = None) -> str:
        """The text that can be told now. What comes after a stop string is not heard."""
        passed = [self._hear_one(token) for token in tokens if not self.finish]
        if end in (End.STOP, End.LENGTH) and not self.finish:
            passed.append(self._finish("length" if end is End.LENGTH else "stop"))
        text = "".join(passed)
        self._passed.append(text)
        return text

    def spoken(self) -> tuple[str, list[int]]:
        """As much of the text as whole tokens have made, and these tokens."""
        text = self.text
        token_count, length = self._text.tokens_within(len(text))
        return text[:length], self._tokens[:token_count]

    def _hear_one(self, token: int) -> str:
        self.token_count += 1
        if token in self._eos_ids:
            return self._finish("stop")
        self._tokens.append(token)
        passed = self._stops.add(self._text.add(token))
        if self._stops.found:
            self.finish = "stop"
        return passed

    def _finish(self, word: str) -> str:
        """What was held back comes out, unless it completes a stop string."""
        passed = self._stops.add(self._text.end())
        self.finish = "stop" if self._stops.found else word
        return passed + self._stops.end()
