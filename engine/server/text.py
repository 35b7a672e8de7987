"""Text out of tokens as they come.

A token may end in the middle of a character. What is not a whole character yet is held back until the tokens
that complete it have come, or the answer has ended. Only the last few tokens are decoded anew each time.
Tests: tests/engine/server/test_text.py.
"""

from collections.abc import Callable, Sequence

__all__ = ["TextStream"]

# What bytes that are no character are decoded to.
REPLACEMENT = "\ufffd"
# A character has four bytes at most, and a token one at least, unless it is a control token.
WINDOW_TOKENS, TAIL_TOKENS = 64, 16


class TextStream:
    """The text of one answer. All increments together are what `decode` makes of all tokens."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        # Tokens that are decoded together with the next: a token's text may depend on the one before it.
        self._window: list[int] = []
        # Characters of the window's text that have been given out.
        self._given = 0
        self._token_count = 0
        self._text_length = 0
        # After so many tokens the text is whole and so many characters long; in increasing order.
        self._cuts: list[tuple[int, int]] = [(0, 0)]

    def add(self, token: int) -> str:
        """The text that is certain with this token; empty while a character is incomplete."""
        self._window.append(token)
        self._token_count += 1
        text = self._decode(self._window)
        if not text.endswith(REPLACEMENT):
            increment = self._give(text)
            self._cuts.append((self._token_count, self._text_length))
            self._window = self._window[-1:]
            self._given = len(self._decode(self._window))
            return increment
        # The last one may still become a character; those before it are what they are.
        increment = self._give(text[:-1])
        if len(self._window) > WINDOW_TOKENS:
            # Bytes that are no text at all, for long: what may still become a character is at the end.
            self._window = self._window[-TAIL_TOKENS:]
            self._given = len(self._decode(self._window)) - 1
        return increment

    def end(self) -> str:
        """What was held back, as it is."""
        return self._give(self._decode(self._window))

    def tokens_within(self, text_length: int) -> tuple[int, int]:
        """How many leading tokens make whole text of at most so many characters, and how many these are.

        Of several token counts with the same text the largest.
        """
        return max(cut for cut in self._cuts if cut[1] <= text_length)

    def _give(self, text: str) -> str:
        increment = text[self._given :]
        self._given = max(self._given, len(text))
        self._text_length += len(increment)
        return increment
