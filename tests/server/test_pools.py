"""How much moves at once, by the sizes of blocks and of the CPU tier."""

import pytest

from kvstore.core.config import WRITES_MAX, transfer_blocks, write_blocks
from kvstore.server.layout import Layout
from kvstore.server.pools import frame_bytes

MIB = 1 << 20


def layout(block_bytes: int, ranks: int = 1) -> Layout:
    return Layout(block_tokens=16, block_bytes=block_bytes, ranks=ranks, fingerprint=bytes(32))


@pytest.mark.parametrize(
    ("block_bytes", "cpu_bytes", "copied", "written"),
    [
        (2 * MIB, 1024 * MIB, 8, 16),
        (2 * MIB, 300 * MIB, 8, 12),
        (2 * MIB, 64 * MIB, 8, 8),
        (64 * MIB, 1024 * MIB, 1, 1),
        (4096, 1024 * MIB, 64, 128),
    ],
)
def test_writes_are_larger_than_copies_where_they_pin_little_of_the_cpu_tier(
    block_bytes: int, cpu_bytes: int, copied: int, written: int
) -> None:
    frames = cpu_bytes // block_bytes
    assert transfer_blocks(frame_bytes(layout(block_bytes))) == copied
    assert write_blocks(frame_bytes(layout(block_bytes)), frames) == written
    assert written == copied or WRITES_MAX * written <= frames // 4
