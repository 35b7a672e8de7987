"""Where there is nothing to gain: prompts that begin alike nowhere, short prompts, all that runs fits.

Three loads on which the best that kvstore can do is to cost little. Told so that nobody looks for a fault, or
enlarges a tier that won't be used; silent as soon as memory is short, or what was cached is found again.
"""

from collections.abc import Iterator

from kvstore.cli.advice_ghosts import advise_ghosts
from kvstore.cli.advice_links import Advice
from kvstore.cli.texts import counted
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["SHARE_OF_BLOCKS", "advise_gain", "is_memory_short"]

# Fewer say nothing yet.
SEQUENCES_MIN = 50
# Blocks found, of those asked for; sequences moved for want of room, of those admitted; hits below the GPU,
# of all hits: less is as good as none.
SHARE_OF_BLOCKS, SHARE_OF_SEQUENCES, SHARE_OF_HITS = 0.05, 0.05, 0.05
# Prompts of tens of tokens: computed about as fast as they are looked up.
SHORT_TOKENS = 100


def advise_gain(usage: pb.Usage) -> Iterator[Advice]:
    """One at most: the first of the three that is so."""
    prefix, admitted = usage.prefix, usage.prefix.sequences_admitted
    if admitted < SEQUENCES_MIN or is_memory_short(usage) or any(advise_ghosts(usage)):
        return
    below = prefix.cpu_blocks + prefix.disk_blocks
    hits = prefix.gpu_blocks + below
    if usage.block_tokens and prefix.blocks_queried * usage.block_tokens < SHORT_TOKENS * admitted:
        yield _little(_short(usage), usage)
    elif hits < SHARE_OF_BLOCKS * prefix.blocks_queried:
        yield _little(
            f"of the {prefix.blocks_queried:,} blocks that prompts ask for "
            f"{hits / prefix.blocks_queried:.1%} are found, so hardly any begin alike. Leave out the block "
            "keys of such prompts, and nothing of them is looked up, kept and copied down; what some have in "
            "common has to stand first in them, byte for byte the same",
            usage,
        )
    elif below < SHARE_OF_HITS * hits and not usage.sessions and len(usage.tiers) > 1:
        yield _little(
            f"of the blocks that are found {prefix.gpu_blocks / hits:.1%} are on the GPU, and no session is "
            "kept to come back. The tiers below are of use to a restart only: as long as that is so, --cpu "
            "and --disk-bytes may be small",
            usage,
        )


def is_memory_short(usage: pb.Usage) -> bool:
    """Whether sequences have to go for others: where they go to is what the tiers are for."""
    return _moved(usage) >= SHARE_OF_SEQUENCES * usage.prefix.sequences_admitted


def _short(usage: pb.Usage) -> str:
    prefix = usage.prefix
    if not prefix.blocks_queried:
        return (
            f"prompts ask for no block. Either all are shorter than a block of {usage.block_tokens} tokens, "
            "and there is nothing to change; or the engine sends no block keys, and should, where prompts "
            "begin alike"
        )
    tokens = prefix.blocks_queried * usage.block_tokens / prefix.sequences_admitted
    return (
        f"prompts ask for {tokens:.0f} tokens each, in whole blocks of {usage.block_tokens}: so few are "
        "computed about as fast as they are found. There is nothing to change"
    )


def _little(why: str, usage: pb.Usage) -> Advice:
    admitted = counted(usage.prefix.sequences_admitted, "sequence")
    return Advice(
        "little_to_give",
        "On this load kvstore has little to give: all that runs fits "
        f"({admitted} admitted, {counted(_moved(usage), 'swap')} or drops), and {why}.",
    )


def _moved(usage: pb.Usage) -> int:
    return usage.sequences.swaps_out + usage.sequences.drops
