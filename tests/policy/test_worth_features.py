"""What of a use tells how soon a block is read again: what is remembered of it, and what comes of it."""

from bisect import bisect_right

import numpy as np
import pytest

from bench.replay import hashes_of
from kvstore.core.ports import Use
from kvstore.policy import hazards
from kvstore.policy import worth as worth_module
from kvstore.policy.ages import BINS, EDGES
from kvstore.policy.hazards import BEND_WEIGHT, FACTOR_WEIGHT, PHASE, PHASE_STARTS, Hazards
from kvstore.policy.kinds import Kinds
from kvstore.policy.worth import Worth


def use(policy: Worth, time: float, keys: list[int]) -> None:
    rows = np.array(keys, np.intp)
    policy.use(Use(time=time, rows=rows, hashes=hashes_of(rows), found=0, prompt_tokens=512 * rows.size))


def remembered(policy: Worth, keys: list[int], column: str) -> list[float]:
    _, records, is_known = policy._ghosts.find(hashes_of(np.array(keys)))
    assert is_known.all()
    return records[column].tolist()


def made(*uses: tuple[float, list[int]]) -> Worth:
    policy = Worth()
    policy.begin(2_000)
    for time, keys in uses:
        use(policy, time, keys)
    return policy


def test_the_mean_gap_is_of_a_block_and_the_latest_counts_half() -> None:
    policy = made((0.0, [1, 2, 3]), (10.0, [1, 2]), (40.0, [1, 2, 4]), (140.0, [1]))
    assert remembered(policy, [1, 2, 3, 4], "gap") == [60.0, 20.0, worth_module.NO_GAP, worth_module.NO_GAP]


# Where a kind's number of children stands.
CHILDREN = 9


def test_children_are_the_different_blocks_that_followed() -> None:
    policy = made((0.0, [1, 2, 3]), (1.0, [1, 2, 4]), (2.0, [1, 2, 3]), (3.0, [1, 5]), (4.0, [1, 2, 3]))
    assert remembered(policy, [1, 2, 3, 4, 5], "children") == [2, 2, 0, 0, 0]
    # All before a branch count as branched: they are shared as it is.
    kinds = policy._kind[[1, 2, 3]]
    assert policy._kinds.levels[CHILDREN, kinds].tolist() == [2, 2, 0]


# Where a kind's tokens that are new stand.
NEW = 4


def test_what_is_new_is_told_in_tokens_and_not_as_a_share() -> None:
    """One block more is 512 tokens, after two blocks as after twenty. A lone block is anybody's."""
    short, long = [1, 2], list(range(100, 120))
    policy = made((0.0, short), (1.0, long), (2.0, [*short, 3]), (3.0, [*long, 120]), (4.0, [1, 4, 5]))
    after = policy._kinds.levels[NEW, policy._kind[[3, 120, 5]]].tolist()
    assert after == [bisect_right(worth_module.NEW_EDGES, 512)] * 2 + [worth_module.ALL_NEW]


def test_uses_and_children_are_counted_so_far_and_no_further() -> None:
    policy = made(*((float(index), [1, 2, 1_000 + index]) for index in range(600)))
    assert remembered(policy, [1, 2], "uses") == [255, 255]
    assert remembered(policy, [1, 2], "children") == [1, 255]


def fitted(table: Hazards, read: np.ndarray, unread: np.ndarray, times: int) -> np.ndarray:
    for _ in range(times):
        for _ in table.fit(read, unread):
            pass
    return table.expected(slice(0, read.shape[1]))


def test_what_is_read_early_and_what_is_read_late_may_be_of_different_kinds() -> None:
    """Of short answers one in two comes back within seconds and no other; of long ones, after minutes."""
    kinds = Kinds()
    nothing = np.zeros(1, np.uint8), np.full(1, -1.0), np.zeros(1, np.uint8)
    short, long = (int(kinds.of((1, 0, level, 0, 0), *nothing)[0]) for level in (1, 5))
    read, unread = np.zeros((BINS, 3)), np.full((BINS, 3), 1e5)
    early, late = (int(np.searchsorted(EDGES, age, side="right")) - 1 for age in (2.0, 200.0))
    read[early, short] = read[late, long] = 5e4
    expected = fitted(Hazards(kinds), read, unread, 10)
    assert expected[early, [short, long]] == pytest.approx([0.5, 0.0], abs=0.03)
    assert expected[late, [short, long]] == pytest.approx([0.0, 0.5], abs=0.03)


def test_a_sweep_takes_a_feature_as_the_plain_formula_does() -> None:
    generator = np.random.default_rng(2)
    reads, due = generator.exponential(1_000, (2, PHASE_STARTS.size, 8))
    factor, bend = generator.uniform(0.5, 2, 8), generator.uniform(0.5, 2, (PHASE_STARTS.size, 8))
    expected_factor, expected_bend = np.empty_like(factor), np.empty_like(bend)
    for level in range(8):
        change = (reads[:, level].sum() + FACTOR_WEIGHT) / (due[:, level].sum() + FACTOR_WEIGHT)
        expected_factor[level] = factor[level] * change
        for phase in range(PHASE_STARTS.size):
            at_one = due[phase, level] / bend[phase, level] * change
            expected_bend[phase, level] = (reads[phase, level] + BEND_WEIGHT) / (at_one + BEND_WEIGHT)
    hazards._fit_feature(factor, bend, reads, due)
    assert factor == pytest.approx(expected_factor)
    assert bend == pytest.approx(expected_bend)


def test_a_phase_is_of_neighbouring_ages() -> None:
    assert PHASE.tolist() == [sum(bool(edge >= limit) for limit in (4, 64)) for edge in EDGES]
