"""What both endpoints are asked in the same words: how to choose tokens, how many, and when to stop.

What OpenAI's API has and this server has not is refused by name, unless it is set to what changes nothing.
Tests: tests/engine/server/test_fields.py.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.sampling import Sampling
from engine.server.errors import invalid
from engine.server.fields import Fields, check_text
from engine.server.limits import Limits

__all__ = ["Parameters", "read_parameters"]

SEED_END = 1 << 63
PRIORITY_MAX = 8
# Bytes in UTF-8, as the store has it.
SESSION_BYTES_MAX = 256
# Of no effect on an answer here, but of these types.
IGNORED: dict[str, Callable[[Fields, str], object]] = {
    "metadata": Fields.nested,
    "store": Fields.flag,
    "service_tier": Fields.text,
    "safety_identifier": Fields.text,
    "prompt_cache_key": Fields.text,
    "parallel_tool_calls": Fields.flag,
}
# Values that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    model: str
    sampling: Sampling
    # Answers to each prompt; and where they are looked for by beam search, over how many beams, else 1.
    samples: int
    beams: int
    # 0: as many as there is room for.
    answer_tokens: int
    # The field that names them.
    answer_field: str
    stops: tuple[str, ...]
    is_streamed: bool
    # Whether a stream ends with what it has used.
    tells_usage: bool
    # The conversation whose tokens are kept; empty: none.
    session: str
    # Who takes turns with other users, and how urgent this is among all.
    user: str
    priority: int
    seconds: float


def read_parameters(fields: Fields, limits: Limits) -> Parameters:
    """Takes all that is common out of the fields, and refuses what is left."""
    model = fields.text("model")
    if not model:
        raise invalid("You must provide a model parameter.", "model", "missing_parameter")
    samples = fields.integer("n", 1, least=1, most=limits.choices)
    user = fields.text("user")
    check_text(user, "user")
    is_streamed = fields.flag("stream")
    options = fields.nested("stream_options")
    tells_usage = options.flag("include_usage")
    options.flag("include_obfuscation")
    options.end()
    answer_tokens, answer_field = _answer_tokens(fields, limits)
    parameters = Parameters(
        model=model,
        sampling=Sampling(
            temperature=fields.number("temperature", 1.0, least=0.0, most=2.0),
            top_p=max(fields.number("top_p", 1.0, least=0.0, most=1.0), 1e-9),
            seed=fields.integer("seed", secrets.randbelow(SEED_END), least=-SEED_END, most=SEED_END - 1),
        ),
        samples=samples,
        beams=_beams(fields, limits, samples, is_streamed),
        answer_tokens=answer_tokens,
        answer_field=answer_field,
        stops=_stops(fields, limits),
        is_streamed=is_streamed,
        tells_usage=is_streamed and tells_usage,
        session=_session(fields, user),
        user=user,
        priority=fields.integer("priority", 0, least=-PRIORITY_MAX, most=PRIORITY_MAX),
        seconds=fields.number(
            "timeout_seconds", limits.request_seconds, least=0.001, most=limits.request_seconds
        ),
    )
    _refuse_unsupported(fields)
    fields.end()
    return parameters


def _answer_tokens(fields: Fields, limits: Limits) -> tuple[int, str]:
    """The older name and the newer one of the same number, and which of them it came by."""
    named, by = 0, "max_tokens"
    for name in ("max_tokens", "max_completion_tokens"):
        if name in fields:
            named, by = fields.integer(name, 1, least=1, most=limits.answer_tokens), name
    return named, by


def _beams(fields: Fields, limits: Limits, samples: int, is_streamed: bool) -> int:
    """As other servers have it beside OpenAI's fields: `use_beam_search`, with `best_of` beams."""
    is_search = fields.flag("use_beam_search")
    beams = fields.integer("best_of", max(samples, 2) if is_search else samples, least=1, most=limits.choices)
    if is_search and not max(samples, 2) <= beams:
        raise invalid(
            "A beam search has at least 2 beams, and one for each answer.", "best_of", "invalid_value"
        )
    if is_search and is_streamed:
        raise invalid("A beam search knows its answers at the end.", "stream", "unsupported_parameter")
    if not is_search and beams != samples:
        raise invalid("best_of needs use_beam_search.", "best_of", "unsupported_parameter")
    return beams if is_search else 1


def _session(fields: Fields, user: str) -> str:
    """The user's name, where there is none of its own."""
    name = "session" if "session" in fields else "user"
    session = fields.text("session", user)
    check_text(session, name)
    if len(session.encode()) > SESSION_BYTES_MAX:
        what = name if name == "session" else "user, which names the session here,"
        raise invalid(f"{what} may have at most {SESSION_BYTES_MAX} bytes in UTF-8.", name, "invalid_value")
    return session


def _stops(fields: Fields, limits: Limits) -> tuple[str, ...]:
    value = fields.take("stop", [])
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(each, str) for each in strings):
        raise fields.wrong("stop", "a string or a list of strings", value)
    if len(strings) > limits.stop_strings:
        raise invalid(
            f"stop may name at most {limits.stop_strings} strings.", "stop", "array_above_max_length"
        )
    if not all(0 < len(each) <= limits.stop_characters for each in strings):
        raise invalid(
            f"Each stop string has 1 to {limits.stop_characters} characters.", "stop", "invalid_value"
        )
    for each in strings:
        check_text(each, "stop")
    return tuple(strings)


def _refuse_unsupported(fields: Fields) -> None:
    for name, read in IGNORED.items():
        read(fields, name)
    for name, neutral in NEUTRAL.items():
        if name in fields and not _is_one_of(fields.take(name), neutral):
            raise invalid(f"{name} is not supported by this server.", name, "unsupported_parameter")


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    """0 is not false: `logprobs: 0` asks a completion for something."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral)
