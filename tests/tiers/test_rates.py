"""What is learnt of a link is what it does: fitted, followed when it changes, kept over a restart."""

import random

import msgspec
import pytest

from kvstore.core.types import COPY, LOAD, READ, WRITE
from kvstore.tiers.calibrating import BLOCK_COUNTS, calibrate
from kvstore.tiers.disk import DiskWriteFailed
from kvstore.tiers.link_names import LINKS
from kvstore.tiers.pool import HostPool
from kvstore.tiers.rates import LinkRate, LinkRates, RatesUnreadable
from tests.tiers.helpers import chain, open_tier

BLOCK = 1 << 20


def link(rng: random.Random, fixed: float, bandwidth: float, size: int) -> float:
    """Seconds, ten percent off at times; and now and then the thread was not run."""
    seconds = (fixed + size / bandwidth) * rng.uniform(0.95, 1.1)
    return seconds * 20 if rng.random() < 0.02 else seconds


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("fixed", "bandwidth"), [(2e-6, 6e9), (1e-3, 1.5e9), (5e-3, 100e6)])
def test_bandwidth_and_fixed_cost_come_out_of_pieces_of_many_sizes(seed, fixed, bandwidth):
    rng, rates = random.Random(seed), LinkRates()
    for _ in range(2_000):
        size = BLOCK * rng.choice(BLOCK_COUNTS)
        rates.note(WRITE, size, link(rng, fixed, bandwidth, size))
    rate = rates.rate(WRITE)
    for blocks in BLOCK_COUNTS:
        assert rate.seconds(blocks * BLOCK) == pytest.approx(fixed + blocks * BLOCK / bandwidth, rel=0.2)


def test_a_calibration_is_fitted_at_once():
    rates = LinkRates()
    samples = [(count * BLOCK, 1e-3 + count * BLOCK / 2e9) for count in BLOCK_COUNTS for _ in range(3)]
    rates.set_measured(READ, samples, {1: 2e9, 4: 3e9}, 0.8)
    rate = rates.rate(READ)
    assert rate.fixed_seconds == pytest.approx(1e-3)
    assert rate.bandwidth_bytes_per_second == pytest.approx(2e9)
    assert rate.concurrent == {1: 2e9, 4: 3e9}
    assert rate.both_ways_share == 0.8


@pytest.mark.parametrize("factor", [0.1, 0.5, 3.0])
def test_a_link_that_changes_is_followed_with_pieces_of_one_size(factor):
    """Then the fixed cost can't be told from the rest: the time of such a piece is right all the same."""
    rng, rates = random.Random(1), LinkRates()
    rates.set_measured(READ, [(count * BLOCK, 1e-3 + count * BLOCK / 1e9) for count in BLOCK_COUNTS], {})
    for _ in range(2_000):
        rates.note(READ, 4 * BLOCK, link(rng, 1e-3, factor * 1e9, 4 * BLOCK))
    assert rates.rate(READ).seconds(4 * BLOCK) == pytest.approx(1e-3 + 4 * BLOCK / factor / 1e9, rel=0.15)


def test_nothing_is_made_of_what_is_no_measurement():
    rates = LinkRates()
    for size, seconds in ((0, 1.0), (-1, 1.0), (10, 0.0), (10, -1.0), (10, float("nan"))):
        rates.note(COPY, size, seconds)
    assert rates.rate(COPY) == LinkRate()
    assert rates.rate(COPY).seconds(1000) == 0


@pytest.mark.parametrize("seed", range(20))
def test_estimates_stay_possible_whatever_is_measured(seed):
    rng, rates = random.Random(seed), LinkRates()
    for _ in range(500):
        rates.note(COPY, rng.choice([1, 4096, 10**6, 10**9]), 10 ** rng.uniform(-7, 2))
        rate = rates.rate(COPY)
        assert 0 < rate.bandwidth_bytes_per_second < float("inf")
        assert 0 <= rate.fixed_seconds < float("inf")


def test_what_is_kept_comes_back_and_goes_on_learning():
    rates, again = LinkRates(), LinkRates()
    rates.set_measured(COPY, [(BLOCK, 1e-3), (4 * BLOCK, 3e-3)], {1: 1e9, 8: 2e9}, 0.7)
    rates.note(LOAD, BLOCK, 1e-3)
    again.restore(rates.encode())
    assert [again.rate(each) for each in LINKS] == [rates.rate(each) for each in LINKS]
    for each in (rates, again):
        each.note(COPY, 4 * BLOCK, 2e-3)
    assert again.rate(COPY) == rates.rate(COPY)


def changed(data: bytes, *path: str, value: object) -> bytes:
    tree = msgspec.json.decode(data)
    inner = tree
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return msgspec.json.encode(tree)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 2),
        (("links",), {"gpu_to_mars": None}),
        (("links", "gpu_to_cpu", "rate", "bandwidth_bytes_per_second"), -1.0),
        (("links", "gpu_to_cpu", "rate", "fixed_seconds"), "x"),
        (("links", "gpu_to_cpu", "sums", "weight"), 0.0),
    ],
)
def test_what_is_not_sound_is_not_taken(path, value):
    rates = LinkRates()
    rates.note(COPY, BLOCK, 1e-3)
    data = rates.encode()
    other = LinkRates()
    for bad in (changed(data, *path, value=value), data[:-3], b"", b"\xff\xfe"):
        with pytest.raises(RatesUnreadable):
            other.restore(bad)
    assert other.rate(COPY) == LinkRate()


# --------------------------------------------------------------------------- at the start


def test_all_links_are_measured_and_the_disk_is_left_as_it_was(tmp_path):
    disk, rates = open_tier(tmp_path, size=5_000, ranks=2), LinkRates()
    with HostPool("gpu", 64, 5_000, 2) as gpu, HostPool("cpu", 20, 5_000, 2) as cpu:
        calibrate(rates, gpu, cpu, disk, chain(10), seconds_max=60.0)
    assert disk.held_blocks == 0
    assert disk.found(10_000) == []
    for each in LINKS:
        rate = rates.rate(each)
        assert rate.is_known
        assert rate.samples > 1
        assert 0 < rate.both_ways_share <= 1
    assert set(rates.rate(COPY).concurrent) == {1, 2, 4, 8}
    disk.close()


def test_its_time_is_bounded_and_something_is_measured_in_none(tmp_path):
    disk, rates = open_tier(tmp_path, size=5_000), LinkRates()
    with HostPool("gpu", 64, 5_000, 1) as gpu, HostPool("cpu", 64, 5_000, 1) as cpu:
        calibrate(rates, gpu, cpu, disk, chain(64), seconds_max=0.0)
    assert all(rates.rate(each).samples == 1 for each in LINKS)
    disk.close()


def test_a_disk_that_can_not_be_written_leaves_the_rest(tmp_path, monkeypatch):
    def full(*_, **__):
        raise DiskWriteFailed("full")

    disk, rates = open_tier(tmp_path, size=5_000), LinkRates()
    with HostPool("gpu", 8, 5_000, 1) as gpu, HostPool("cpu", 8, 5_000, 1) as cpu:
        monkeypatch.setattr(disk, "write", full)
        calibrate(rates, gpu, cpu, disk, chain(8))
    assert rates.rate(LOAD).is_known
    assert not rates.rate(WRITE).is_known
    disk.close()


def test_of_small_blocks_so_many_are_tried_that_large_transfers_are_known():
    rates = LinkRates()
    with HostPool("gpu", 1_500, 4_096, 1) as gpu, HostPool("cpu", 1_500, 4_096, 1) as cpu:
        calibrate(rates, gpu, cpu, seconds_max=60.0)
    assert rates.rate(COPY).large_bytes_per_second > 0
    again = LinkRates()
    again.restore(rates.encode())
    assert again.rate(COPY) == rates.rate(COPY)


def test_without_a_cpu_tier_there_is_nothing_to_measure():
    rates = LinkRates()
    with HostPool("gpu", 8, 5_000, 1) as gpu:
        calibrate(rates, gpu, None)
    assert not any(rates.rate(each).is_known for each in LINKS)
