"""The store in worlds of many sizes, with everything that may go wrong, as `kvstore simulate --fuzz`."""

import pytest

from kvstore.sim.attempts import LONG, Failure, Passed, attempt_seed
from kvstore.sim.report import report
from kvstore.sim.shrink import shrink

TURNS = 120
# Tiers that are as small as can be, as well as those that the seed draws.
SIZES: list[dict[str, float]] = [
    {},
    {"gpu_frames": 5, "cpu_frames": 2, "disk_frames": 3, "lag": 3},
    {"gpu_frames": 8, "cpu_frames": 4, "disk_frames": 30, "transfer_blocks_max": 1, "engines": 3},
    {
        "gpu_frames": 24,
        "cpu_frames": 24,
        "disk_frames": 6,
        "transfer_blocks_max": 2,
        "engines": 4,
        "ranks": 4,
    },
    # Many writes under way, of a block each, and many of them fail.
    {
        "gpu_frames": 24,
        "cpu_frames": 24,
        "disk_frames": 40,
        "transfer_blocks_max": 1,
        "writes_max": 3,
        "fail_share": 0.3,
    },
    # Much on disk, little above it, and a disk that is often stuck and finds bad blocks by itself.
    {
        "gpu_frames": 24,
        "cpu_frames": 8,
        "disk_frames": 100,
        "engines": 1,
        "restart_share": 0.02,
        "late_share": 0.3,
        "flip_share": 0.1,
        "scrub_share": 0.05,
    },
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_case_1_28_no_sequence_ever_reads_anothers_tokens(seed: int, sizes: dict[str, float]) -> None:
    """Rows 2.02 and 3.06 as well: in the end nothing is held, and all that is cached can be given up."""
    result = attempt_seed(seed, TURNS, **sizes)
    if isinstance(result, Failure):
        pytest.fail(report(result, shrink(result)), pytrace=False)
    assert isinstance(result, Passed)
    assert result.reads > 0


@pytest.mark.parametrize("judges_turns", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_chats_that_come_back_for_long_under_what_learns_from_them(seed: int, judges_turns: bool) -> None:
    """Faults that take a history to show: of what is read for the third time, of what a chat once was."""
    result = attempt_seed(seed, 4 * TURNS, **LONG, judges_turns=judges_turns)
    if isinstance(result, Failure):
        pytest.fail(report(result, shrink(result)), pytrace=False)


def test_what_a_swap_had_asked_for_waits_with_all_else_when_it_is_only_cache() -> None:
    """It was put back among what somebody waits for, and was in no lane for those who look at its own."""
    assert isinstance(attempt_seed(93, 300), Passed)
