"""Drop or swap by length: computing a short sequence again costs less than moving it twice."""

from dataclasses import dataclass

__all__ = ["LengthThreshold"]


@dataclass(frozen=True, slots=True)
class LengthThreshold:
    """Sequences of at most `drop_tokens_max` tokens are dropped, longer ones swapped out."""

    drop_tokens_max: int

    def keeps(self, token_count: int) -> bool:
        return token_count > self.drop_tokens_max

    def inputs(self, token_count: int) -> tuple[tuple[str, float], ...]:
        return (("tokens", float(token_count)), ("drop_tokens_max", float(self.drop_tokens_max)))
