"""What was lost for want of room advises: which tier, twice as large, would have had most of it."""

from collections.abc import Iterator

from kvstore.cli.advice_links import FLAGS, NAMES, Advice
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["advise_ghosts"]

# Of all hits; and how many blocks say something.
SHARE_OF_HITS, BLOCKS_MIN = 0.05, 100


def advise_ghosts(usage: pb.Usage) -> Iterator[Advice]:
    tiers = [tier for tier in usage.tiers if tier.frames_total]
    if not tiers:
        return
    # Of two that would have had as much the lower one, whose bytes cost less.
    best = max(reversed(tiers), key=lambda tier: tier.ghost_hit_blocks)
    prefix, lost = usage.prefix, best.ghost_hit_blocks
    hits = prefix.gpu_blocks + prefix.cpu_blocks + prefix.disk_blocks
    if lost >= BLOCKS_MIN and lost >= SHARE_OF_HITS * hits:
        more = f"{lost / hits:.0%} more hits" if hits else f"{lost:,} hits, and there was none"
        yield Advice(
            "ghost_hits",
            f"Twice the {NAMES[best.tier]} tier would have had {more}: {best.ghost_hit_tokens:,} tokens of "
            f"prompts were computed again for want of room. A larger {FLAGS[best.tier]} pays.",
        )
