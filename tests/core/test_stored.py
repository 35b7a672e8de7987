"""Blocks in columns are to everybody else the records that they were made of."""

import numpy as np
import pytest

from kvstore.core.errors import CheckFailed
from kvstore.core.stored import StoredBlocks
from kvstore.core.types import BlockKey, NamespaceId, StoredKey, TenantId, WriterId


def block(number: int, parent: int | None = None, *, tenant: int = 1) -> StoredKey:
    return StoredKey(
        namespace=NamespaceId(2**31 - 1),
        tenant=TenantId(tenant),
        key=BlockKey(number.to_bytes(32)),
        parent=BlockKey(b"" if parent is None else parent.to_bytes(32)),
        writer=WriterId(7 + number),
        owner=2**63 - 1 - number,
    )


BLOCKS = [block(1), block(2, 1), block(1, tenant=2), block(3, 1), block(4, 3), block(5, 1, tenant=2)]


def test_they_come_out_as_they_went_in() -> None:
    found = StoredBlocks.of(BLOCKS)
    assert found == BLOCKS
    assert found != BLOCKS[:-1]
    assert list(found) == BLOCKS
    assert [found[place] for place in range(-6, 6)] == BLOCKS * 2
    assert found[1::2] == BLOCKS[1::2]
    assert found.parents.tolist() == [-1, 0, -1, 0, 3, 2]
    assert StoredBlocks.of(found) is found
    assert StoredBlocks.of(()) == []
    with pytest.raises(IndexError):
        found[6]


def test_what_is_taken_hangs_together_as_before() -> None:
    assert StoredBlocks.of(BLOCKS).take(np.array([0, 3, 4])) == [BLOCKS[0], BLOCKS[3], BLOCKS[4]]


@pytest.mark.parametrize("wrong", [[block(2, 1)], [block(2, 1), block(1)], [block(1), block(2, 1, tenant=2)]])
def test_each_stands_behind_its_parent(wrong: list[StoredKey]) -> None:
    with pytest.raises(CheckFailed, match="without its parent"):
        StoredBlocks.of(wrong)
