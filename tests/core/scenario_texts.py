"""Texts of scenario files: `A0..A3 A4:2` is four blocks of text A and the first two tokens of a fifth.

A block's number is its place. `A0 A1 B2` is a text that leaves A behind its second block; `A1:2+B1` is
a block that follows A for two tokens and then B. What stands before a block is in its key, so a name
stands for several keys if it stands behind several others; it is shown with those before it then.
"""

import re
from dataclasses import dataclass, field, replace

from kvstore.core.types import BlockKey
from tests.core.scenario_words import ScenarioError
from tests.core.world import BLOCK_TOKENS, keys_of, text

__all__ = ["Names", "Text"]

_RANGE = re.compile(r"([A-Z])(\d+)\.\.\1(\d+)")
_PIECE = re.compile(r"([A-Z])(\d+)(?::(\d+))?")


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens, block by block. `first` is the place of the first one; `keys` are those of the full blocks."""

    words: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    keys: tuple[BlockKey, ...] = ()
    first: int = 0

    def head(self, token_count: int) -> "Text":
        blocks, rest = divmod(min(token_count, len(self.tokens)), BLOCK_TOKENS)
        words = self.words[:blocks]
        if rest:
            words += (_shortened(self.words[blocks], rest),)
        return replace(self, words=words, tokens=self.tokens[:token_count], keys=self.keys[:blocks])

    def continues(self, other: "Text") -> bool:
        return self.tokens[: len(other.tokens)] == other.tokens

    def __str__(self) -> str:
        return " ".join(_ranges(self.words))


@dataclass(slots=True)
class Names:
    """The keys that block names of one scenario stand for: the first that each stood for, and all by key."""

    keys: dict[str, BlockKey] = field(default_factory=dict)
    words: dict[BlockKey, str] = field(default_factory=dict)

    def parse(self, words: list[str]) -> Text:
        blocks = [block for word in words for block in _spread(word)]
        tokens: list[int] = []
        first = _place(blocks[0]) if blocks else 0
        for place, block in enumerate(blocks, first):
            if len(tokens) % BLOCK_TOKENS:
                raise ScenarioError(f"{block} stands behind a block that is not full")
            if _place(block) != place:
                raise ScenarioError(f"{block} can't stand in place {place} of its text")
            tokens += _tokens(block)
        if first:
            keys = tuple(self._key(block) for block in blocks)
        else:
            keys = keys_of(tokens)
            self._learn(blocks, keys)
        return Text(tuple(blocks), tuple(tokens), keys, first)

    def word(self, key: BlockKey) -> str:
        return self.words.get(key, key.hex())

    def in_text(self, shown: str) -> str:
        """A refusal's value, keys replaced by names."""
        for key, word in self.words.items():
            shown = shown.replace(key.hex(), word)
        return shown

    def _key(self, block: str) -> BlockKey:
        if block not in self.keys:
            raise ScenarioError(f"{block} is not known yet: name its text from block 0 on first")
        return self.keys[block]

    def _learn(self, blocks: list[str], keys: tuple[BlockKey, ...]) -> None:
        before = ""
        for block, key in zip(blocks, keys, strict=False):
            if key not in self.words:
                self.words[key] = f"{before}{block}" if block in self.keys else block
            self.keys.setdefault(block, key)
            before = f"{self.words[key]}/"


def _spread(word: str) -> list[str]:
    match = _RANGE.fullmatch(word)
    if not match:
        return [word]
    letter, first, last = match[1], int(match[2]), int(match[3])
    if last <= first:
        raise ScenarioError(f"{word}: a range goes up")
    return [f"{letter}{place}" for place in range(first, last + 1)]


def _pieces(word: str) -> list[tuple[str, int, int]]:
    """Letter, place and end of each piece of a block."""
    pieces: list[tuple[str, int, int]] = []
    for part in word.split("+"):
        match = _PIECE.fullmatch(part)
        if not match:
            raise ScenarioError(f"{word!r} is no block: write A0, A0..A3, A4:2 or A4:2+B4")
        pieces.append((match[1], int(match[2]), int(match[3] or BLOCK_TOKENS)))
    ends = [0, *(end for _, _, end in pieces)]
    if sorted(set(ends)) != ends or ends[-1] > BLOCK_TOKENS or len({place for _, place, _ in pieces}) > 1:
        raise ScenarioError(f"{word!r}: pieces of one block, each with more of its {BLOCK_TOKENS} tokens")
    return pieces


def _place(word: str) -> int:
    return _pieces(word)[0][1]


def _tokens(word: str) -> list[int]:
    tokens: list[int] = []
    for letter, place, end in _pieces(word):
        whole = text(ord(letter) - ord("A") + 1, (place + 1) * BLOCK_TOKENS)[place * BLOCK_TOKENS :]
        tokens += whole[len(tokens) : end]
    return tokens


def _shortened(word: str, token_count: int) -> str:
    kept: list[str] = []
    for letter, place, end in _pieces(word):
        end = min(end, token_count)
        kept.append(f"{letter}{place}" + ("" if end == BLOCK_TOKENS else f":{end}"))
        if end == token_count:
            break
    return "+".join(kept)


def _ranges(words: tuple[str, ...]) -> list[str]:
    """Neighbours of one letter as a range."""
    shown: list[str] = []
    for word in words:
        previous = shown[-1] if shown else ""
        match = re.fullmatch(r"(?:([A-Z])\d+\.\.)?([A-Z])(\d+)", previous)
        if match and word == f"{match[2]}{int(match[3]) + 1}":
            shown[-1] = f"{previous.split('..')[0]}..{word}"
        else:
            shown.append(word)
    return shown
