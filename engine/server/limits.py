"""All sizes that a request may have, and how many there may be at once."""

from dataclasses import dataclass, fields

from engine.server.flags import FlagRefused

__all__ = ["SECONDS_MAX", "Limits"]

# A day: whoever waits longer waits for ever.
SECONDS_MAX = 86_400.0
COUNT_MAX = 2**31 - 1
# A Fork takes so many children; a process can't have many more descriptors.
MOST = {"choices": 64, "connections": 65_536}


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
            is_seconds = field.name.endswith("_seconds")
            most = SECONDS_MAX if is_seconds else MOST.get(field.name, COUNT_MAX)
            # NaN is in no order with anything, so it fails here too.
            if not 0 < value <= most:
                remedy = f"{'more than 0' if is_seconds else 1} to {most:.12g}"
                raise FlagRefused(_flag(field.name), value, "out of bounds", remedy)
        if self.choices > self.answers_at_once:
            why = f"more than the {self.answers_at_once} answers that may be under way"
            raise FlagRefused("--choices", self.choices, why, "fewer, or more --answers-at-once")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
