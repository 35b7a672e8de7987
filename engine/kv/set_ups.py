"""The five set-ups: where KV is kept, and what is done where it has no room.

Each adds one thing to the one before, so that what that thing buys can be seen (docs/engine.md, "Five
set-ups"; ADR 20). All five batch continuously, and answer the same tokens.
"""

from dataclasses import dataclass

__all__ = ["BLOCK_TOKENS", "CONTIGUOUS", "FULL", "PAGED", "RESERVE_TOKENS_MAX", "SET_UPS", "SetUp"]

# Tokens that a block may have.
BLOCK_TOKENS = (8, 16, 32, 64)
# What the contiguous cache reserves for a request if nothing else is said; a shorter context, whole.
RESERVE_TOKENS_MAX = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    name: str
    # A frame has room for all tokens that a request may have, and a request has one.
    is_contiguous: bool = False
    # KV is kept by a kvstore service, where requests share blocks and find those of earlier ones.
    has_service: bool = False
    # The service has tiers below the GPU's.
    has_lower_tiers: bool = False
    # Requests are admitted as long as there is room, and pushed out where it ends. Without it a request is
    # admitted when room for all that it may need is certain.
    preempts: bool = False


CONTIGUOUS = SetUp(name="contiguous", is_contiguous=True)
PAGED = SetUp(name="paged")
SHARED = SetUp(name="shared", has_service=True)
TIERED = SetUp(name="tiered", has_service=True, has_lower_tiers=True)
FULL = SetUp(name="full", has_service=True, has_lower_tiers=True, preempts=True)
SET_UPS = {each.name: each for each in (CONTIGUOUS, PAGED, SHARED, TIERED, FULL)}
