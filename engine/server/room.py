"""How long an answer may be: in the model's context, and in the memory that there is for KV.

What can never be held is refused before it is begun, and not when memory is full after minutes of computing.
Tests: tests/engine/server/test_room.py, test_app.py.
"""

from engine.acceptance import AnswerRoom
from engine.server.asked import Asked
from engine.server.errors import answer_too_large, prompt_too_long, too_large
from engine.server.limits import Limits

__all__ = ["answer_tokens"]


def answer_tokens(
    asked: Asked, prompt_tokens: int, *, context_tokens: int, memory: AnswerRoom, limits: Limits
) -> int:
    """The most that each answer to this prompt gets. A number that was asked for is kept or refused; where
    none was named, there are as many as there is room for."""
    named = asked.parameters.answer_tokens
    wanted = named or asked.answer_tokens_default
    room = context_tokens - prompt_tokens
    if room < max(wanted, 1):
        raise prompt_too_long(prompt_tokens, max(wanted, 1), context_tokens, asked.field)
    if memory.tokens_max < 1:
        raise too_large(_why(prompt_tokens, memory.at_once), asked.field)
    if named > memory.tokens_max:
        field = asked.parameters.answer_field
        raise answer_too_large(field, named, prompt_tokens, memory.tokens_max, memory.at_once)
    wanted = wanted or min(room, limits.answer_tokens_default, limits.answer_tokens)
    return min(wanted, memory.tokens_max)


def _why(prompt_tokens: int, at_once: int) -> str:
    each = f" and {at_once} answers at once" if at_once > 1 else ""
    return f"the KV memory can never hold the {prompt_tokens} tokens of its prompt{each}"
