"""Texts as numbers, and their keys.

A token number says which text it is of and where it stands in it: no two texts have a token in
common but where one branched off the other. So the tokens of a block name its whole lineage.
"""

import hashlib
import random
from collections.abc import Iterable

from kvstore.core.types import BlockKey, EngineId, NamespaceId, StoredKey, TenantId, WriterId

__all__ = ["BLOCK_TOKENS", "Content", "Texts", "engine_id", "keys_of", "stored_keys", "text"]

BLOCK_TOKENS = 4
Content = tuple[int, ...]

# Texts that are begun again; more would never come twice.
KNOWN_MAX = 32


def engine_id(number: int) -> EngineId:
    return EngineId(f"00000000-0000-4000-8000-{number:012d}")


def text(number: int, token_count: int) -> Content:
    """Tokens that no other text has."""
    return tuple(range(number * 1_000_000, number * 1_000_000 + token_count))


def keys_of(tokens: Iterable[int]) -> tuple[BlockKey, ...]:
    """Keys of the full blocks of a text."""
    digest, keys, block = hashlib.sha256(), [], []
    for token in tokens:
        block.append(token)
        if len(block) == BLOCK_TOKENS:
            digest.update(repr(block).encode())
            keys.append(BlockKey(digest.digest()))
            block = []
    return tuple(keys)


def stored_keys(tokens: Content, *, tenant: int = 1, namespace: int = 1) -> list[StoredKey]:
    """The full blocks of a text as the disk names them, written by writer 7."""
    keys = keys_of(tokens)
    return [
        StoredKey(
            namespace=NamespaceId(namespace),
            tenant=TenantId(tenant),
            key=key,
            parent=parent,
            writer=WriterId(7),
        )
        for key, parent in zip(keys, (BlockKey(b""), *keys), strict=False)
    ]


class Texts:
    """Texts that have been written before, to begin with again, whoever did it: tenants and
    namespaces have the same ones, and must not see each other's blocks for all that."""

    def __init__(self) -> None:
        self.known: list[Content] = []
        # Of chats that come back, by tenant and session: the last turn, and what it has come to.
        self.chats: dict[tuple[str, str], tuple[int, Content]] = {}
        self._last_token = 0

    def remember(self, tokens: Iterable[int]) -> None:
        self.known.append(tuple(tokens))
        del self.known[:-KNOWN_MAX]

    def end_turn(self, tenant: str, session: str, turn: int, tokens: Iterable[int]) -> None:
        """The chat goes on from here."""
        self.chats[tenant, session] = turn, tuple(tokens)

    def new_tokens(self, rng: random.Random, most: int) -> list[int]:
        """At least one token, and fewer than `most` and one more."""
        first = self._last_token + 1
        self._last_token += rng.randint(1, most)
        return list(range(first, self._last_token + 1))
