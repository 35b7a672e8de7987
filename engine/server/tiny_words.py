"""A tokenizer for the tiny model, which comes with none: bytes, pairs of letters, and two control tokens.

Its random model says nothing that can be read. But as with a real one a text has several tokenisations, of
which `encode` gives one, and a token may be part of a character.
"""

import re
from collections.abc import Sequence
from itertools import product

from engine.server.words import Message

__all__ = ["TinyWords"]

BEGIN, END = 256, 257
NAMES = {"<|im_start|>": BEGIN, "<|im_end|>": END}
VOCAB_SIZE = 320
_PAIRS = ["".join(pair).encode() for pair in product("aehinorst", " adehnrst")][: VOCAB_SIZE - END - 1]
# From the longest on: a pair goes before its first letter.
_PIECE = re.compile(b"|".join(map(re.escape, _PAIRS)) + b"|.", re.DOTALL)


class TinyWords:
    """Text to tokens and back; see `Words`."""

    vocab_size = VOCAB_SIZE
    eos_ids = frozenset({END})
    control_names = frozenset(NAMES)

    def __init__(self) -> None:
        self._bytes = {**{at: bytes([at]) for at in range(256)}, BEGIN: b"", END: b""}
        self._bytes |= {END + 1 + at: pair for at, pair in enumerate(_PAIRS)}
        self._ids = {piece: token for token, piece in self._bytes.items() if piece}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in re.split(r"(<\|im_start\|>|<\|im_end\|>)", text):
            if part in NAMES:
                ids.append(NAMES[part])
            else:
                ids += [self._ids[piece] for piece in _PIECE.findall(part.encode("utf-8", "replace"))]
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._bytes[token] for token in ids).decode("utf-8", "replace")

    def render(self, messages: Sequence[Message]) -> str:
        told = [f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages]
        return "".join(told) + "<|im_start|>assistant\n"
