"""Eviction by worth: what it rests on against plain reckoning, and what it comes to on made traces."""

from dataclasses import replace

import numpy as np
import pytest

from bench.policy_cases import GENERATORS, case_of, chats, ended_sessions
from bench.replay import hashes_of, replay
from bench.traces import Trace
from kvstore.core.ports import Use
from kvstore.core.types import CPU, DISK, GPU
from kvstore.policy import chain_worth, returns
from kvstore.policy.admission import WATCHED_SECONDS, AdmitByChance
from kvstore.policy.ages import BINS, EDGES, WIDTHS
from kvstore.policy.arc import Arc
from kvstore.policy.chain_worth import ChainWorth
from kvstore.policy.eviction import Lru
from kvstore.policy.ghosts import Ghosts
from kvstore.policy.kinds import KINDS_MAX, Kinds
from kvstore.policy.lfu import LfuAgeing
from kvstore.policy.order import UseOrder
from kvstore.policy.returns import Returns
from kvstore.policy.s3fifo import S3Fifo
from kvstore.policy.worth import Worth


def rows_of(*rows: int) -> np.ndarray:
    return np.array(rows, np.intp)


def use(policy: Worth, time: float, rows: np.ndarray, keys: np.ndarray, found: int = 0) -> None:
    policy.use(Use(time=time, rows=rows, hashes=hashes_of(keys), found=found, prompt_tokens=512 * rows.size))
    policy.touch(GPU, rows[::-1])


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


# ---------------------------------------------------------------------- the policy


def test_before_anything_is_known_it_is_least_recently_used() -> None:
    policy = Worth()
    policy.begin(100)
    for index in range(10):
        rows = np.arange(3) + 3 * index
        use(policy, 20.0 * index, rows, rows)
    assert policy.victims(GPU, 6, lambda rows: rows).tolist() == [2, 1, 0, 5, 4, 3]


def test_a_session_that_is_over_goes_first_but_not_what_others_use() -> None:
    policy = Worth()
    policy.begin(100)
    use(policy, 0.0, np.arange(0, 6), np.arange(0, 6))
    # Another chain on the same two leading blocks.
    use(policy, 50.0, np.array([0, 1, 10, 11, 12]), np.array([0, 1, 10, 11, 12]), found=2)
    policy.retire(rows_of(12, 11, 10, 1, 0))
    assert policy.victims(GPU, 3, lambda rows: rows).tolist() == [12, 11, 10]
    assert policy.victims(GPU, 9, lambda rows: rows).tolist()[-2:] == [1, 0]


def test_what_is_favoured_goes_last_by_priority() -> None:
    policy = Worth()
    policy.begin(100)
    use(policy, 0.0, np.arange(10), np.arange(10))
    assert policy.victims(GPU, 1, lambda rows: rows).tolist() == [9]
    policy.favour(rows_of(1, 0), np.array([1, 2], np.int32))
    assert policy.victims(GPU, 10, lambda rows: rows).tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    policy.favour(rows_of(9), np.array([3], np.int32))
    assert policy.victims(GPU, 10, lambda rows: rows).tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 0, 9]
    use(policy, 500.0, np.arange(10, 13), np.arange(10, 13))
    policy.unfavour(rows_of(9, 1, 0))
    assert policy.victims(GPU, 6, lambda rows: rows).tolist() == [8, 7, 6, 5, 4, 3]


def test_what_may_not_go_is_passed_over_and_all_else_found() -> None:
    policy = Worth()
    policy.begin(20_000)
    use(policy, 0.0, np.arange(19_000), np.arange(19_000))
    victims = policy.victims(GPU, 30, lambda rows: rows[rows % 1_000 == 7])
    assert sorted(victims.tolist()) == [7 + 1_000 * each for each in range(19)]


def test_a_sample_has_no_part_of_a_chain_without_its_tail() -> None:
    order, together = UseOrder(20_000), np.repeat(np.arange(40), 500)
    for chain in range(40):
        order.append(np.arange(500 * chain, 500 * chain + 500))
    lengths: set[int] = set()
    for turn in range(30):
        rows = order.sample(8_192, turn, 32, together)
        for chain in np.unique(together[rows]).tolist():
            sampled = np.sort(rows[together[rows] == chain])
            assert sampled.tolist() == list(range(500 * chain, 500 * chain + sampled.size))
            lengths.add(sampled.size)
    assert len(lengths) > 5


def test_who_only_looks_changes_no_choice() -> None:
    """So a journal is replayed with every invariant checked as it is without."""
    generator = np.random.default_rng(5)
    alone, looked_at = Worth(), Worth()
    for policy in (alone, looked_at):
        policy.begin(200)
    time = 0.0
    for _ in range(400):
        time += float(10 ** generator.uniform(-2, 2))
        start, size = int(generator.integers(0, 180)), int(generator.integers(1, 20))
        rows = np.arange(start, start + size)
        for policy in (alone, looked_at):
            use(policy, time, rows, 1 + rows)
        with looked_at.looking():
            looked_at.victims(GPU, int(generator.integers(1, 200)), lambda rows: rows)
        if generator.random() < 0.3:
            count = int(generator.integers(1, 8))
            victims = [
                policy.victims(GPU, count, lambda rows: rows).tolist() for policy in (alone, looked_at)
            ]
            assert victims[0] == victims[1]


def test_victims_are_found_among_those_that_are_judged_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains that are all worth the same, of which a look cuts many in the middle."""
    policy, length = Worth(), 100
    policy.begin(40_000)
    for index in range(400):
        rows = np.arange(length) + length * index
        use(policy, 1.0, rows, rows)

    evicted: set[int] = set()

    def removable(rows: np.ndarray) -> np.ndarray:
        """After what hangs on it."""
        gone = set(evicted)
        for row in rows.tolist():
            if row % length == length - 1 or row + 1 in gone:
                gone.add(row)
        return np.array([row for row in rows.tolist() if row in gone], np.intp)

    monkeypatch.setattr(UseOrder, "all", None)
    for _ in range(50):
        victims = policy.victims(GPU, 200, removable)
        assert victims.size == 200
        evicted.update(victims.tolist())
        policy.forget(GPU, victims)


def test_a_block_used_again_is_no_victim_of_an_earlier_look() -> None:
    policy = Worth()
    policy.begin(1_000)
    for index in range(20):
        rows = np.arange(10) + 10 * index
        use(policy, 100.0 * index, rows, rows)
    first = policy.victims(GPU, 5, lambda rows: rows)
    policy.forget(GPU, first)
    assert not np.isin(policy.victims(GPU, 5, lambda rows: rows), first).any()
    use(policy, 2_000.0, np.arange(10), np.arange(10), found=5)
    assert not np.isin(policy.victims(GPU, 5, lambda rows: rows), np.arange(10)).any()


def best_classic(trace: Trace, capacity: int) -> float:
    made = (Lru(), LfuAgeing(), Arc([capacity]), S3Fifo([capacity]))
    return max(replay(trace, policy, [capacity]).hit_rate for policy in made)


@pytest.mark.slow
@pytest.mark.parametrize("make", GENERATORS, ids=lambda make: make.__name__)
def test_it_loses_to_no_classic_on_traces_it_was_not_made_for(make) -> None:
    trace = make()
    trace = trace.part(0, 2_500, trace.name)
    for capacity in case_of(trace).capacities:
        assert replay(trace, Worth(), [capacity]).hit_rate >= 0.975 * best_classic(trace, capacity), capacity


def test_it_does_the_same_each_time() -> None:
    trace = chats(requests=1_500)
    counts = [replay(trace, Worth(), [64, 400, 1_000]) for _ in range(2)]
    assert counts[0] == counts[1]


def test_hints_help() -> None:
    trace = chats(requests=3_000)
    hints = ended_sessions(trace, 0.6, 1)
    plain, hinted = (replay(trace, Worth(), [1_000], hints=each).hit_rate for each in (None, hints))
    assert hinted > 1.1 * plain


def test_admission_saves_writes_and_keeps_chains_whole() -> None:
    # Over more than half an hour, so that most of it comes when uses have been watched for long enough.
    trace = slowed(chats(requests=4_000), 5)
    sizes = [64, 400, 4_000]

    def run(least: float):
        worth = Worth()
        return replay(trace, worth, sizes, admission=AdmitByChance(worth, {CPU: least, DISK: least}))

    everything, some = run(0.0), run(0.5)
    assert some.put[DISK] < 0.9 * everything.put[DISK]
    # Of what it writes, more is read.
    assert some.hits[DISK] / some.put[DISK] > everything.hits[DISK] / everything.put[DISK]
    assert some.hit_rate > 0.85 * everything.hit_rate


def test_before_uses_were_watched_for_long_only_what_is_over_is_refused() -> None:
    trace, sizes = chats(requests=2_000), [64, 400, 4_000]
    hints = ended_sessions(trace, 0.6, 1)
    assert trace.requests[-1].time < WATCHED_SECONDS

    def run(least: float, told):
        worth = Worth()
        admission = AdmitByChance(worth, {CPU: least, DISK: least})
        return replay(trace, worth, sizes, admission=admission, hints=told)

    assert run(0.5, None) == run(0.0, None)
    assert run(0.5, hints).put[CPU] < run(0.0, hints).put[CPU]


def slowed(trace: Trace, factor: float) -> Trace:
    requests = [replace(request, time=factor * request.time) for request in trace.requests]
    return Trace(name=trace.name, requests=requests, block_count=trace.block_count)
