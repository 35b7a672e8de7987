"""Lines of scenario files: words, then options after commas. `allocate s1 A0..A3, session chat`."""

import re
from dataclasses import dataclass

__all__ = ["Line", "ScenarioError", "number_of", "seconds_of"]


class ScenarioError(Exception):
    """The file can't be understood. The runner puts file and line before it."""

    # Where it is an operation that can't be understood: which of those below the command, from 1.
    lines_below = 0


@dataclass(slots=True)
class Line:
    """One line, taken word by word; what nobody takes is an error."""

    text: str
    words: list[str]
    options: dict[str, list[str]]

    @classmethod
    def parse(cls, text: str) -> "Line":
        main, *clauses = [clause.split() for clause in text.split(",")]
        if not all((main, *clauses)):
            raise ScenarioError(f"{text.strip()!r}: nothing stands before or behind a comma")
        options = {clause[0]: clause[1:] for clause in clauses}
        if len(options) < len(clauses):
            raise ScenarioError(f"{text.strip()!r}: an option is named twice")
        return cls(text.strip(), main, options)

    @classmethod
    def of(cls, *words: str) -> "Line":
        return cls(" ".join(words), list(words), {})

    def word(self, what: str) -> str:
        if not self.words:
            raise ScenarioError(f"{self.text!r}: {what} is missing")
        return self.words.pop(0)

    def rest(self) -> list[str]:
        words, self.words = self.words, []
        return words

    def sequence(self) -> int:
        return number_of(self.word("a sequence"), "s", "a sequence is called s1, s2, …")

    def sequences(self) -> tuple[int, ...]:
        found = [self.sequence()]
        while self.words:
            found.append(self.sequence())
        return tuple(found)

    def flag(self, name: str) -> bool:
        if name not in self.options:
            return False
        if self.options.pop(name):
            raise ScenarioError(f"{self.text!r}: nothing follows {name!r}")
        return True

    def one_of(self, *names: str) -> str:
        """The one of these flags that is there; the first where none is."""
        found = [name for name in names if self.flag(name)]
        if len(found) > 1:
            raise ScenarioError(f"{self.text!r}: one of {', '.join(found)}")
        return found[0] if found else names[0]

    def value(self, name: str, default: str = "") -> str:
        if name not in self.options:
            return default
        values = self.options.pop(name)
        if len(values) != 1:
            raise ScenarioError(f"{self.text!r}: one value follows {name!r}")
        return values[0]

    def number(self, name: str, default: int) -> int:
        return number_of(self.value(name, str(default)), "", f"{name} is a number")

    def numbers(self, name: str) -> list[int]:
        return [number_of(word, "", f"{name} takes numbers") for word in self.options.pop(name, [])]

    def done(self) -> None:
        left = self.words or list(self.options)
        if left:
            raise ScenarioError(f"{self.text!r}: {left[0]!r} is not understood here")


def number_of(word: str, prefix: str, rule: str) -> int:
    match = re.fullmatch(prefix + r"(\d+)", word)
    if not match:
        raise ScenarioError(f"{word!r}: {rule}")
    return int(match[1])


def seconds_of(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ScenarioError(f"{word!r}: seconds are a number") from None
