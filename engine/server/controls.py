"""Names of control tokens in what a client has written, which are to stay text.

A conversation is rendered to one text, and in that a control token's name becomes the token: a message with
`<|im_end|>` in it would end there, and what follows could pose as another role. So each such name in a
message is marked behind its first character. Where the rendered text is tokenised it is cut at the marks, and
no piece has the name whole. Text without such names is not cut, and has the tokens that it always had.
Tests: tests/engine/server/test_controls.py.
"""

import re
from collections.abc import Collection, Sequence

from engine.server.words import Message

__all__ = ["cut_at_marks", "mark_controls"]

# Half of a surrogate pair: no text that UTF-8 can hold has it, so no client can send it.
MARK = "\ud800"


def mark_controls(messages: Sequence[Message], names: Collection[str]) -> list[Message]:
    """`names`: of control tokens. The contents must be text that UTF-8 can hold."""
    return [{**message, "content": _mark(message["content"], names)} for message in messages]


def cut_at_marks(text: str) -> list[str]:
    """The pieces that are tokenised each by itself."""
    return text.split(MARK)


def _mark(text: str, names: Collection[str]) -> str:
    found = [name for name in names if len(name) > 1 and name in text]
    if not found:
        return text
    # Looked ahead for, so that names which overlap are all found.
    return re.sub(f"(?=(?:{'|'.join(map(re.escape, found))}))(.)", rf"\1{MARK}", text, flags=re.DOTALL)
