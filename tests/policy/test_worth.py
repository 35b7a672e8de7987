"""Eviction by worth: each part of what it rests on against plain reckoning."""

import numpy as np
import pytest

from bench.replay import hashes_of
from kvstore.policy import chain_worth, returns
from kvstore.policy.ages import BINS, EDGES, WIDTHS
from kvstore.policy.chain_worth import ChainWorth
from kvstore.policy.ghosts import Ghosts
from kvstore.policy.kinds import KINDS_MAX, Kinds
from kvstore.policy.returns import Returns

# ---------------------------------------------------------------------- the index


def plain_index(hazard: np.ndarray, start: int) -> float:
    """Each time to stop, tried by itself."""
    best = 0.0
    for stop in range(start, BINS):
        unread, reads, time = 1.0, 0.0, 0.0
        for bin_ in range(start, stop + 1):
            reads += unread * hazard[bin_]
            time += unread * WIDTHS[bin_] * (1 - hazard[bin_] / 2)
            unread *= 1 - hazard[bin_]
        best = max(best, reads / time)
    return best


def test_the_index_is_the_best_over_all_times_to_stop() -> None:
    hazard = np.random.default_rng(1).random((BINS, 50)) ** 3
    worth = returns._gittins(hazard)
    for kind in range(50):
        expected = [plain_index(hazard[:, kind], bin_) for bin_ in range(BINS)]
        assert worth[:BINS, kind] == pytest.approx(expected)


def blocks(count: int, uses: int = 0, gap: float = -1.0, children: int = 0) -> tuple[np.ndarray, ...]:
    """What is asked of a request's blocks, the same of each."""
    return np.full(count, uses, np.uint8), np.full(count, gap), np.full(count, children, np.uint8)


def made_kinds(count: int) -> Kinds:
    """Kinds of different answer lengths, numbered from 1."""
    kinds = Kinds()
    for level in range(count):
        assert kinds.of((0, 0, level, 0, 0), *blocks(1)).tolist() == [level + 1]
    return kinds


def test_hazards_come_to_those_that_are() -> None:
    """Blocks of kind 1 come back after 100 s one time in two, those of kind 2 one in twenty."""
    table, generator = Returns(made_kinds(2)), np.random.default_rng(3)
    due: list[tuple[float, int, int]] = []
    for second in range(6_000):
        while due and due[0][0] <= second:
            _, kind, size = due.pop(0)
            table.read(np.full(size, kind, np.int16), np.full(size, 100.0))
        kind = second % 2 + 1
        table.used(float(second), np.full(40, kind, np.int16))
        if generator.random() < (0.5 if kind == 1 else 0.05):
            due.append((second + 100.0, kind, 40))
    bin_ = int(np.searchsorted(EDGES, 100.0, side="right")) - 1
    assert table.hazard[bin_, 1] == pytest.approx(0.5, abs=0.05)
    assert table.hazard[bin_, 2] == pytest.approx(0.05, abs=0.02)
    kinds = np.array([1, 2], np.int16)
    likely, unlikely = table.chance(kinds, np.zeros(2)).tolist()
    assert likely == pytest.approx(0.5, abs=0.06)
    assert unlikely < 0.12
    # Past the age at which they come back, neither is worth what it was.
    assert (table.worth(kinds, np.full(2, 50.0)) > 4 * table.worth(kinds, np.full(2, 2_000.0))).all()


def test_what_was_told_to_be_over_says_nothing_of_others() -> None:
    """Half of the blocks end by hint; of the others each second one comes back."""
    table = Returns(made_kinds(1))
    blocks = np.full(20, 1, np.int16)
    for second in range(6_000):
        table.used(float(second), blocks)
        if second % 2:
            table.ended(blocks, np.zeros(20))
        elif second >= 100 and second % 4 == 0:
            table.read(blocks, np.full(20, 100.0))
    chance = float(table.chance(np.array([1], np.int16), np.zeros(1))[0])
    assert chance == pytest.approx(0.5, abs=0.06)


def test_kinds_are_bounded() -> None:
    kinds = Kinds()
    generator = np.random.default_rng(5)
    for _ in range(20_000):
        request = (int(generator.integers(6)), *generator.integers(0, 8, 4).tolist())
        uses, children = generator.integers(0, 30, (2, 20)).astype(np.uint8)
        of = kinds.of(request, uses, generator.exponential(100, 20) - 10, children)
        assert (of > 0).all()
        assert (of < KINDS_MAX).all()
        assert (kinds.levels[0, of] == request[0]).all()
        assert (kinds.levels[5, of] == np.searchsorted([1, 2, 3, 6, 20], uses, side="right")).all()
    assert kinds.count <= KINDS_MAX


def test_blocks_of_a_request_differ_in_kind_by_what_is_known_of_each() -> None:
    kinds, request = Kinds(), (1, 2, 3, 4, 0)
    plain = kinds.of(request, *blocks(8, uses=1, gap=5.0, children=1))
    # Heads, and the tail with its neighbours.
    assert [len(set(plain[part].tolist())) for part in (slice(1, 4), slice(0, 8))] == [1, 5]
    for other in ({"uses": 2}, {"gap": 20.0}, {"gap": -1.0}, {"children": 2}):
        changed = kinds.of(request, *blocks(8, **{"uses": 1, "gap": 5.0, "children": 1} | other))
        assert not np.isin(changed, plain).any(), other
    alike = kinds.of(request, *blocks(8, uses=1, gap=15.0, children=1))
    assert alike.tolist() == plain.tolist()


# ---------------------------------------------------------------------- ghosts and chains


def test_a_ghost_is_known_until_another_takes_its_place() -> None:
    ghosts = Ghosts(1)
    hashes = hashes_of(np.arange(1_000_000))
    places, records, _ = ghosts.find(hashes)
    records["hash"], records["length"] = hashes, np.arange(hashes.size)
    ghosts.put(places, records)
    _, found, is_known = ghosts.find(hashes)
    last = {int(place): index for index, place in enumerate(places.tolist())}
    assert np.flatnonzero(is_known).tolist() == sorted(last.values())
    assert found["length"][is_known].tolist() == sorted(last.values())


def plain_greatest(parents: dict[int, int], own: dict[int, float]) -> dict[int, float]:
    greatest = dict(own)
    for row, worth in own.items():
        above = row
        while above in parents and parents[above] in own:
            above = parents[above]
            greatest[above] = max(greatest[above], worth)
    return greatest


def made_chains(seed: int) -> tuple[ChainWorth, np.ndarray, dict[int, int]]:
    """Chains that hang on each other; the rows in the order of use, and the parent of each."""
    generator = np.random.default_rng(seed)
    chains = ChainWorth(300)
    order: list[int] = []
    parents: dict[int, int] = {}
    known: list[np.ndarray] = [np.arange(5)]
    free = 5
    for _ in range(15):
        before = known[int(generator.integers(len(known)))]
        head = before[: int(generator.integers(1, before.size + 1))]
        fresh = np.arange(free, free + int(generator.integers(1, 10)))
        free += fresh.size
        chain = np.concatenate([head, fresh]).astype(np.intp)
        known.append(chain)
        chains.used(chain)
        parents |= dict(zip(chain[1:].tolist(), chain[:-1].tolist(), strict=True))
        order = [row for row in order if row not in chain] + chain[::-1].tolist()
    return chains, np.array(order, np.intp), parents


@pytest.mark.parametrize("scale_bits", [chain_worth.SCALE_BITS, 60], ids=["usual", "little room above"])
@pytest.mark.parametrize("seed", range(20))
def test_a_block_is_worth_no_less_than_what_hangs_on_it(
    seed: int, scale_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_worth, "SCALE_BITS", scale_bits)
    chains, rows, parents = made_chains(seed)
    own = np.random.default_rng(seed).random(rows.size)
    expected = plain_greatest(parents, dict(zip(rows.tolist(), own.tolist(), strict=True)))
    greatest = chains.greatest(rows, own)
    assert greatest == pytest.approx([expected[row] for row in rows.tolist()])


def test_lone_blocks_keep_their_order_however_many_they_are() -> None:
    """More of them than numbers of runs fit above a worth of the usual size."""
    chains = ChainWorth(5_000_000)
    rows = np.arange(5_000_000)
    chains.use[:] = rows
    own = np.random.default_rng(1).random(rows.size)
    in_order = chains.ranks(rows, own)[np.argsort(own)]
    assert (in_order[1:] >= in_order[:-1]).all()
