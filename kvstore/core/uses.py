"""What requests have done with cached blocks, and that a session is over, told to a policy that learns what
comes back.

It is told when a request is over: only then are all of its blocks there, and from then on they may be
evicted.
"""

import numpy as np

from kvstore.core.engines import Used
from kvstore.core.memory import Memory
from kvstore.core.ports import KeyHashes, Use
from kvstore.core.types import BlockKey, DomainId, Rows

__all__ = ["key_hashes", "tell_over", "tell_uses"]

# Of eight bytes each, in a key. It is a digest, so any of them will do.
WORDS = 4
# Odd and with bits all over, so that each domain turns other bits round.
DOMAIN_FACTOR = 0x9E37_79B9_7F4A_7C15
HASH_MASK = 0xFFFF_FFFF_FFFF_FFFF


def tell_uses(memory: Memory, uses: list[Used]) -> None:
    """After what publishes their blocks, and before their references end."""
    for used in uses:
        rows = np.array(memory.prefix.find_prefix(used.domain, used.keys, {}), np.intp)
        if rows.size:
            use = Use(
                time=memory.now,
                rows=rows,
                hashes=key_hashes(used.domain, used.keys[: rows.size]),
                found=min(used.found, rows.size),
                prompt_tokens=used.prompt_tokens,
                answer_tokens=used.answer_tokens,
                session_turn=used.turn,
            )
            memory.eviction.use(use)


def tell_over(memory: Memory, rows: Rows) -> None:
    """Nobody goes on from these cached blocks, which no other has used. Before they are thrown away."""
    if memory.eviction.learns and rows.size:
        memory.eviction.retire(rows[np.argsort(-memory.blocks.depth[rows], kind="stable")])


def key_hashes(domain: DomainId, keys: tuple[BlockKey, ...]) -> KeyHashes:
    """uint64[keys]; of the same text others in each namespace and for each tenant."""
    hashes: KeyHashes = np.frombuffer(b"".join(keys), np.uint64)[::WORDS]
    return hashes ^ np.uint64(domain * DOMAIN_FACTOR & HASH_MASK)
