"""Random engines on tiers of many sizes. A failure names its seed: `fuzz(seed, **sizes)` does it again."""

import pytest

from tests.core.fuzz import fuzz

SIZES: list[dict[str, int]] = [
    {},
    {"cpu_frames": 6},
    {"cpu_frames": 12, "disk_frames": 20},
    {"gpu_frames": 5, "cpu_frames": 2, "disk_frames": 3, "lag": 3},
    {"gpu_frames": 8, "cpu_frames": 4, "disk_frames": 30, "transfer_blocks_max": 1, "engines": 3},
    {"gpu_frames": 24, "cpu_frames": 24, "disk_frames": 6, "transfer_blocks_max": 2, "engines": 3},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_case_1_28_no_sequence_ever_reads_anothers_tokens(seed: int, sizes: dict[str, int]) -> None:
    """Rows 2.02 and 3.06 as well: after the drain nothing is held, and all that is cached can be evicted."""
    try:
        world = fuzz(seed, steps=100, **sizes)
    except Exception as error:
        error.add_note(f"fuzz({seed}, steps=100, **{sizes})")
        raise
    assert world.shadow.reads > 0
