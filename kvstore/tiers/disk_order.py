"""The order in which a restart tells of the blocks on disk: parents first, least recent chains first."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kvstore.tiers.disk_format import BlockEntry

__all__ = ["order_chains"]

# Namespace and tenant at the head of a block's name; parents are looked for within them.
DOMAIN_BYTES = 8


def order_chains(entries: Mapping[bytes, BlockEntry]) -> tuple[list[bytes], list[bytes]]:
    """Block names in order, and the orphans: those that hang, however far up, on a block that is missing.

    A tree of chains is as recent as the newest block in it; so is each branch among its siblings.
    A parent may be younger than its child: it was found bad, deleted and stored again.
    """
    children: defaultdict[bytes, list[bytes]] = defaultdict(list)
    roots: list[bytes] = []
    for name, entry in entries.items():
        siblings = children[name[:DOMAIN_BYTES] + entry.parent] if entry.parent else roots
        siblings.append(name)
    recent = _find_recency(entries, roots, children)
    order: list[bytes] = []
    stack = sorted(roots, key=recent.__getitem__, reverse=True)
    while stack:
        name = stack.pop()
        order.append(name)
        stack.extend(sorted(children.get(name, ()), key=recent.__getitem__, reverse=True))
    return order, [name for name in entries if name not in recent]


def _find_recency(
    entries: Mapping[bytes, BlockEntry], roots: Sequence[bytes], children: Mapping[bytes, Sequence[bytes]]
) -> dict[bytes, int]:
    """The newest time in each block's subtree, for all that hang on a root."""
    reached = list(roots)
    for name in reached:  # Grows while it is walked: breadth first.
        reached.extend(children.get(name, ()))
    recent: dict[bytes, int] = {}
    for name in reversed(reached):
        below = (recent[child] for child in children.get(name, ()))
        recent[name] = max(entries[name].created_ns, *below, 0)
    return recent
