"""All sizes that a request may have, and how many there may be at once."""

import math
from dataclasses import dataclass, fields

__all__ = ["Limits"]

# A Fork takes so many children.
CHOICES_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Checked once; each is named by the flag of the same name."""

    # Of a request's body.
    body_bytes: int = 1 << 20
    messages: int = 1024
    # Answers of one request: `n`, times the prompts of a completion.
    choices: int = 16
    stop_strings: int = 4
    stop_characters: int = 256
    # Tokens of an answer: the most that a request may name, and what a chat has where it names no number.
    # With OpenAI that is the model's longest answer; of a model that rambles on a CPU it would take minutes.
    answer_tokens: int = 4096
    answer_tokens_default: int = 512
    # Answers under way or waiting, of all requests together; beyond that: 429.
    answers_at_once: int = 64
    connections: int = 512
    # Tokens of answers that are remembered for all sessions.
    session_tokens: int = 4_000_000
    # Until a request is done; it may ask for less.
    request_seconds: float = 600.0
    # Until the head of a request has come, then its body.
    receive_seconds: float = 20.0
    # For how long a client may take nothing of its answer.
    send_seconds: float = 60.0
    # For answers under way when the server is told to stop.
    stop_seconds: float = 20.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                what = "above 0" if not value > 0 else "finite"
                raise ValueError(f"{field.name} must be {what}, not {value}")
        if self.choices > CHOICES_MAX:
            raise ValueError(f"choices must be at most {CHOICES_MAX}: so many may share one prompt's blocks")
        if self.choices > self.answers_at_once:
            raise ValueError(
                f"choices ({self.choices}) must not be more than answers_at_once ({self.answers_at_once})"
            )
