"""Stop strings: where an answer ends, though a string may come in pieces over several tokens.

Text that could be the beginning of a stop string is held back until the next text decides.
Tests: tests/engine/server/test_stops.py.
"""

from collections.abc import Sequence

__all__ = ["StopStrings"]


class StopStrings:
    """Passes text through up to the first of the strings, which itself is not passed."""

    def __init__(self, strings: Sequence[str]) -> None:
        """`strings`: none of them empty."""
        if not all(strings):
            raise ValueError("a stop string must not be empty")
        self._strings = tuple(strings)
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        """What can be passed on now; nothing any more once a string was found."""
        if self.found:
            return ""
        self._held += text
        begins = [begin for string in self._strings if (begin := self._held.find(string)) >= 0]
        if begins:
            self.found = True
            passed, self._held = self._held[: min(begins)], ""
            return passed
        end = len(self._held) - self._hold_length()
        passed, self._held = self._held[:end], self._held[end:]
        return passed

    def end(self) -> str:
        """The answer has ended: what was held back was no stop string."""
        passed, self._held = self._held, ""
        return passed

    def _hold_length(self) -> int:
        """Of the longest end of the text that a stop string begins with."""
        longest = max(map(len, self._strings), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            end = self._held[-length:]
            if any(string.startswith(end) for string in self._strings):
                return length
        return 0
