"""How an engine lays its blocks out: the sizes that the pools are made for, checked.

The store uses the sizes, compares the fingerprint, and shows the description to people.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvstore.core.errors import FieldInvalid

__all__ = ["Layout"]

BLOCK_TOKENS_MAX = 65_536
BLOCK_BYTES_MAX = 1 << 30
RANKS_MAX = 64
FINGERPRINT_BYTES = 32
DESCRIPTION_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One rank's block is `block_bytes` long; a frame number means the same block on all ranks."""

    block_tokens: int
    block_bytes: int
    ranks: int
    fingerprint: bytes
    description: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bounds = {"block_tokens": BLOCK_TOKENS_MAX, "block_bytes": BLOCK_BYTES_MAX, "ranks": RANKS_MAX}
        for name, most in bounds.items():
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise FieldInvalid("out of bounds", field=name, value=value, remedy=f"1 to {most}")
        if len(self.fingerprint) != FINGERPRINT_BYTES:
            raise FieldInvalid(
                f"{len(self.fingerprint)} bytes long",
                field="fingerprint",
                value=self.fingerprint[:FINGERPRINT_BYTES].hex(),
                remedy=f"a hash of {FINGERPRINT_BYTES} bytes over all that the bytes of a block depend on",
            )
        length = sum(len(text.encode()) for pair in self.description.items() for text in pair)
        if length > DESCRIPTION_BYTES_MAX:
            raise FieldInvalid(
                "too long",
                field="description",
                value=f"{length} bytes",
                remedy=f"at most {DESCRIPTION_BYTES_MAX} bytes, keys and values together",
            )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """What later engines must agree with: the pools are made for it."""
        return self.block_tokens, self.block_bytes, self.ranks

    def __str__(self) -> str:
        return f"{self.block_tokens} tokens and {self.block_bytes} bytes a block, {self.ranks} rank(s)"
