"""Which of the blocks that were found on disk are kept, when the tier holds fewer."""

from collections.abc import Sequence

from kvstore.core.types import BlockKey, BlockRow, StoredKey

__all__ = ["most_recent_chains", "tails_first"]


def most_recent_chains(found: Sequence[StoredKey], capacity: int) -> dict[StoredKey, None]:
    """Up to `capacity` blocks, each with all that it hangs on, in the order of `found`.

    `found` names each block after its parent and the least recent chains first.
    """
    by_key = {(block.namespace, block.tenant, block.key): block for block in found}
    kept: set[StoredKey] = set()
    for block in reversed(found):
        chain: list[StoredKey] = []
        link: StoredKey | None = block
        while link is not None and link not in kept:
            chain.append(link)
            link = by_key.get((link.namespace, link.tenant, BlockKey(link.parent)))
        if len(kept) + len(chain) <= capacity:
            kept.update(chain)
    return {block: None for block in found if block in kept}


def tails_first(rows: Sequence[BlockRow], found: Sequence[StoredKey]) -> list[BlockRow]:
    """The rows of found blocks as if each chain had been used in turn: the least recent chains first,
    of each its tail before its head."""
    order: list[BlockRow] = []
    chain: list[BlockRow] = []
    above = BlockKey(b"")
    for row, block in zip(rows, found, strict=True):
        if block.parent != above:
            order += reversed(chain)
            chain.clear()
        chain.append(row)
        above = block.key
    return order + chain[::-1]
