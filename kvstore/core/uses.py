"""What requests have done with cached blocks, and that a session is over, told to a policy that learns what
comes back.

It is told when a request is over: only then are all of its blocks there, and from then on they may be
evicted.
"""

import numpy as np

from kvstore.core.blocks import NO_ROW, NO_ROWS, concat
from kvstore.core.engines import Used
from kvstore.core.memory import Memory
from kvstore.core.ports import KeyHashes, Use
from kvstore.core.types import BlockKey, DomainId, Rows

__all__ = ["Chains", "key_hashes", "own_chains", "tell_over", "tell_uses"]

# Of eight bytes each, in a key. It is a digest, so any of them will do.
WORDS = 4
# Odd and with bits all over, so that each domain turns other bits round.
DOMAIN_FACTOR = 0x9E37_79B9_7F4A_7C15
HASH_MASK = 0xFFFF_FFFF_FFFF_FFFF


# Rows of chains, by domain and last key.
Chains = dict[tuple[DomainId, BlockKey], Rows]


def tell_uses(memory: Memory, uses: list[Used]) -> Chains:
    """After what publishes their blocks, and before their references end. Returns the rows of their chains,
    as far as they can be found."""
    chains: Chains = {}
    for used, own in zip(uses, own_chains(memory, uses), strict=True):
        rows = own
        if not rows.size:
            rows = np.array(memory.prefix.find_prefix(used.domain, used.keys, {}), np.intp)
        chains[used.domain, used.keys[-1]] = rows
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
    return chains


def own_chains(memory: Memory, uses: list[Used]) -> list[Rows]:
    """Of each the rows that the sequence had, where these are what its keys lead to: each can be found and
    hangs on the one before it, down to the last key. Else none. One look for all."""
    blocks = memory.blocks
    counts = np.array([len(used.rows) for used in uses])
    rows = concat([used.rows for used in uses])
    ends = np.cumsum(counts)
    above = np.empty_like(rows)
    above[1:] = rows[:-1]
    above[(ends - counts)[counts > 0]] = NO_ROW
    are_wrong = ~blocks.indexed[rows] | (blocks.parent[rows] != above)
    if blocks.has_barred:
        are_wrong |= blocks.barred[rows]
    wrong = np.flatnonzero(are_wrong)
    first_wrong = np.append(wrong, rows.size)[np.searchsorted(wrong, ends - counts)]
    chains: list[Rows] = []
    for used, begin, end, is_whole in zip(
        uses, (ends - counts).tolist(), ends.tolist(), (first_wrong >= ends).tolist(), strict=True
    ):
        last = rows[end - 1] if begin < end == begin + len(used.keys) and is_whole else NO_ROW
        is_own = last != NO_ROW and blocks.key[last] == used.keys[-1] and blocks.domain[last] == used.domain
        chains.append(rows[begin:end] if is_own else NO_ROWS)
    return chains


def tell_over(memory: Memory, rows: Rows) -> None:
    """Nobody goes on from these cached blocks, which no other has used. Before they are thrown away."""
    if memory.eviction.learns and rows.size:
        memory.eviction.retire(rows[np.argsort(-memory.blocks.depth[rows], kind="stable")])


def key_hashes(domain: DomainId, keys: tuple[BlockKey, ...]) -> KeyHashes:
    """uint64[keys]; of the same text others in each namespace and for each tenant."""
    hashes: KeyHashes = np.frombuffer(b"".join(keys), np.uint64)[::WORDS]
    return hashes ^ np.uint64(domain * DOMAIN_FACTOR & HASH_MASK)
