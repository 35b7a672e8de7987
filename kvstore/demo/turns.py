"""What became of each turn, and what the demo has to show for it in the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Report", "Turn"]

# A first difference where the plain run's two best logits are this close is a near tie (DESIGN.md 7).
NEAR_TIE = 1e-3
NEAR_TIES_MAX = 1


@dataclass(slots=True, eq=False)
class Turn:
    """One prompt and its answers: over kvstore, and plainly."""

    session: str
    number: int
    prompt: tuple[int, ...]
    # Tokens of the answer so far, as told while it comes.
    token_count: int = 0
    tokens: list[int] = field(default_factory=list)
    ttft_ms: float = 0.0
    from_gpu: int = 0
    from_cpu: int = 0
    from_disk: int = 0
    preemptions: int = 0
    # Whether an engine was killed while it ran, so that another has done it again.
    redone: bool = False
    plain_tokens: list[int] = field(default_factory=list)
    plain_ttft_ms: float = 0.0
    plain_margins: list[float] = field(default_factory=list)

    @property
    def id(self) -> str:
        return f"{self.session} {self.number}"

    @property
    def computed(self) -> int:
        return len(self.prompt) - self.from_gpu - self.from_cpu - self.from_disk

    @property
    def is_equal(self) -> bool:
        return self.tokens == self.plain_tokens

    @property
    def is_near_tie(self) -> bool:
        """The answers differ, and part where the plain run itself was hardly decided."""
        pairs = zip(self.tokens, self.plain_tokens, self.plain_margins, strict=False)
        margin = next((margin for token, plain, margin in pairs if token != plain), NEAR_TIE)
        return margin < NEAR_TIE

    def take_admission(self, line: Mapping[str, Any]) -> None:
        self.from_gpu, self.from_cpu, self.from_disk = (
            line["gpu_tokens"],
            line["cpu_tokens"],
            line["disk_tokens"],
        )

    def take_answer(self, line: Mapping[str, Any]) -> None:
        self.tokens, self.ttft_ms, self.preemptions = line["tokens"], line["ttft_ms"], line["preemptions"]

    def take_plain_answer(self, line: Mapping[str, Any]) -> None:
        self.plain_tokens, self.plain_margins = line["tokens"], line["margins"]
        self.plain_ttft_ms = line["ttft_ms"]

    def to_json(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "turn": self.number,
            "prompt_tokens": len(self.prompt),
            "from_gpu": self.from_gpu,
            "from_cpu": self.from_cpu,
            "from_disk": self.from_disk,
            "computed": self.computed,
            "ttft_ms": self.ttft_ms,
            "ttft_plain_ms": self.plain_ttft_ms,
            "equal": self.is_equal,
            "near_tie": self.is_near_tie,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`blocks_unknown`: came back, and nobody had told their digests."""

    turns: Sequence[Turn]
    blocks_verified: int
    blocks_wrong: int
    blocks_unknown: int
    engine_kills: int
    service_restarts: int

    def problems(self) -> list[str]:
        """What speaks against this run, in words; nothing if all went as it should."""
        differing = [turn.id for turn in self.turns if not turn.is_equal and not turn.is_near_tie]
        near_ties = [turn.id for turn in self.turns if turn.is_near_tie]
        found = []
        if differing:
            found.append("answers differ from the plain run: " + ", ".join(differing))
        if len(near_ties) > NEAR_TIES_MAX:
            found.append("more near ties than one: " + ", ".join(near_ties))
        if self.blocks_wrong:
            found.append(f"{self.blocks_wrong} blocks have come back with other bytes")
        if self.blocks_unknown or not self.blocks_verified:
            found.append(f"nothing was proven of {self.blocks_unknown or 'any'} blocks")
        for tier in ("gpu", "cpu", "disk"):
            if not any(getattr(turn, f"from_{tier}") for turn in self.turns):
                found.append(f"no token was served from the {tier} tier")
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "turns": [turn.to_json() for turn in self.turns],
            "blocks_verified": self.blocks_verified,
            "blocks_wrong": self.blocks_wrong,
            "engine_kills": self.engine_kills,
            "service_restarts": self.service_restarts,
            "ok": not self.problems(),
        }
