"""Blocks that were found on disk, in columns. There may be millions of them, and nobody is served before they
are taken in: a record for each would cost more than all else that is done for it."""

from collections.abc import Iterator, Sequence
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from kvstore.core.errors import check
from kvstore.core.types import BlockKey, DomainId, Rows, StoredKey, domain_id, domain_parts

__all__ = ["NO_PLACE", "StoredBlocks"]

NO_PLACE = -1
NO_KEY = BlockKey(b"")


class StoredBlocks(Sequence[StoredKey]):
    """Columns, in step. To whoever asks for one block, or for one after the other, these are records.

    `parents` has, of each block, the place of the one that it hangs on, or NO_PLACE.
    """

    def __init__(
        self,
        *,
        keys: list[BlockKey],
        parents: Rows,
        domains: NDArray[np.int64],
        writers: NDArray[np.uint32],
        owners: NDArray[np.int64],
    ) -> None:
        self.keys = keys
        self.parents = parents
        self.domains = domains
        self.writers = writers
        self.owners = owners

    @classmethod
    def of(cls, blocks: Sequence[StoredKey]) -> "StoredBlocks":
        """CheckFailed where one is told before the block that it hangs on, or without it."""
        if isinstance(blocks, StoredBlocks):
            return blocks
        domains = [domain_id(block.namespace, block.tenant) for block in blocks]
        places: dict[tuple[DomainId, BlockKey], int] = {}
        parents: list[int] = []
        for place, (domain, block) in enumerate(zip(domains, blocks, strict=True)):
            parent = places.get((domain, block.parent), NO_PLACE) if block.parent else NO_PLACE
            check(parent != NO_PLACE or not block.parent, "a block was found without its parent before it")
            parents.append(parent)
            places[domain, block.key] = place
        return cls(
            keys=[block.key for block in blocks],
            parents=np.array(parents, np.intp),
            domains=np.array(domains, np.int64),
            writers=np.array([block.writer for block in blocks], np.uint32),
            owners=np.array([block.owner for block in blocks], np.int64),
        )

    def take(self, places: Rows) -> Self:
        """In this order. With each block the one that it hangs on is taken."""
        place_of = np.full(len(self) + 1, NO_PLACE)
        place_of[places] = np.arange(places.size)
        parents = self.parents[places]
        return type(self)(
            keys=[self.keys[place] for place in places.tolist()],
            parents=place_of[parents],
            domains=self.domains[places],
            writers=self.writers[places],
            owners=self.owners[places],
        )

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[StoredKey]:
        return self._records(slice(None))

    @overload
    def __getitem__(self, place: int) -> StoredKey: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StoredKey]: ...
    def __getitem__(self, place: int | slice) -> StoredKey | Sequence[StoredKey]:
        if isinstance(place, slice):
            return list(self._records(place))
        place = range(len(self))[place]
        return next(self._records(slice(place, place + 1)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _records(self, places: slice) -> Iterator[StoredKey]:
        columns = (self.parents, self.domains, self.writers, self.owners)
        rows = zip(self.keys[places], *(column[places].tolist() for column in columns), strict=True)
        for key, parent, domain, writer, owner in rows:
            namespace, tenant = domain_parts(domain)
            yield StoredKey(
                namespace=namespace,
                tenant=tenant,
                key=key,
                parent=NO_KEY if parent == NO_PLACE else self.keys[parent],
                writer=writer,
                owner=owner,
            )
