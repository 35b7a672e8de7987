"""What all parts of the serving benchmark share: the model, its words and sizes, and what was seen so far."""

from dataclasses import dataclass, field
from functools import cached_property

from bench.serving_measured import Measured
from bench.serving_server import SetUp
from bench.serving_text import Prompts, load_words
from engine.models import DTYPES, open_model
from engine.server.words import Words

__all__ = ["SEED", "Bench"]

SEED = 1
DTYPE = DTYPES["fp32"]


@dataclass
class Bench:
    """`quick`: with the tiny model and a fraction of the loads. Its times say nothing, and have no goals.

    `seen`: by load and set-up, for the table and the plots.
    """

    quick: bool
    seen: dict[str, dict[str, Measured]] = field(default_factory=dict)

    @property
    def model(self) -> str:
        return "tiny" if self.quick else "smollm2"

    @cached_property
    def words(self) -> Words:
        return load_words(self.model)

    @cached_property
    def prompts(self) -> Prompts:
        return Prompts(self.words, SEED)

    def memory_bytes(self, tokens: int, block_tokens: int = 16) -> int:
        """Of the KV of so many tokens, in whole frames."""
        layout = open_model(self.model).config.kv_layout(block_tokens=block_tokens, dtype=DTYPE)
        return -(-tokens // block_tokens) * layout.frame_stride_bytes

    def setup(self, name: str, tokens: int, *, block_tokens: int = 16, reserve_tokens: int = 2048) -> SetUp:
        """With KV memory for so many tokens."""
        return SetUp(
            name=name,
            model=self.model,
            memory_bytes=self.memory_bytes(tokens, block_tokens),
            block_tokens=block_tokens,
            reserve_tokens=reserve_tokens,
        )

    def goal(self, figure: float) -> float | None:
        """Of a row of times."""
        return None if self.quick else figure

    def note(self, load: str, setup: str, measured: Measured) -> None:
        self.seen.setdefault(load, {})[setup] = measured
