"""The token bucket on virtual time: never 5 % above the limit in any second, 5 % around it on average."""

import random
import threading
from collections import deque

import pytest

from kvstore.core.errors import CheckFailed
from kvstore.tiers.pacing import QUANTUM_BYTES_MIN, RealClock, TokenBucket
from tests.tiers.clocks import VirtualClock

RATES = [7e6, 100e6, 1.5e9, 40e9]


def pieces(rng: random.Random, bucket: TokenBucket, mean: float = 4e6) -> int:
    """As a mover cuts: no piece is larger than the bucket lets go at once."""
    size = rng.randint(1, int(2 * mean))
    return min(size, bucket.quantum_bytes or size)


def most_in_a_second(moved: list[tuple[float, int]]) -> int:
    """Over all windows that end with a piece."""
    window: deque[tuple[float, int]] = deque()
    total = most = 0
    for time, size in moved:
        window.append((time, size))
        total += size
        while window[0][0] < time - 1.0:
            total -= window.popleft()[1]
        most = max(most, total)
    return most


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("seed", range(5))
def test_never_above_the_limit_by_five_percent_and_its_mean_within_five(rate, seed):
    rng, clock = random.Random(seed), VirtualClock()
    bucket = TokenBucket(clock, rate)
    bandwidth = rate * rng.uniform(1.2, 20)
    moved: list[tuple[float, int]] = []
    stall = 0.1
    while clock.time < 8.0 and len(moved) < 40_000:
        size = pieces(rng, bucket)
        bucket.pace(size)
        moved.append((clock.time, size))
        clock.pass_by(size / bandwidth)
        if clock.time > stall:  # The thread is not run for a while.
            clock.pass_by(rng.uniform(0, 0.02))
            stall = clock.time + rng.uniform(0, 0.4)
    assert most_in_a_second(moved) <= 1.05 * rate
    assert sum(size for _, size in moved) / clock.time == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize("rate", RATES)
def test_an_idle_second_is_not_saved_up(rate):
    rng, clock = random.Random(1), VirtualClock()
    bucket = TokenBucket(clock, rate)
    moved: list[tuple[float, int]] = []
    for burst in range(3):
        clock.pass_by(5.0 * burst)
        end = clock.time + 2.0
        while clock.time < end and len(moved) < 20_000:
            size = pieces(rng, bucket)
            bucket.pace(size)
            moved.append((clock.time, size))
    assert most_in_a_second(moved) <= 1.05 * rate


def test_a_block_larger_than_the_limit_goes_alone_and_is_paid_for_after():
    clock = VirtualClock()
    bucket = TokenBucket(clock, 1e6)
    times = []
    for _ in range(5):
        bucket.pace(4_000_000)
        times.append(clock.time)
    assert times == pytest.approx([0.0, 4.0, 8.0, 12.0, 16.0])


def test_a_slower_link_than_the_limit_never_waits():
    clock = VirtualClock()
    bucket = TokenBucket(clock, 1e9)
    for _ in range(1000):
        bucket.pace(1_000_000)
        clock.pass_by(1_000_000 / 0.5e9)
    assert bucket.waited_seconds == 0


def test_a_new_limit_holds_for_who_waits_under_the_old_one():
    clock = VirtualClock()
    bucket = TokenBucket(clock, 1e6)
    bucket.pace(60_000_000)  # A minute of debt.
    clock.at(2.0, lambda: bucket.set_rate(2e6))
    bucket.pace(1_000_000)
    assert clock.time == 2.0
    bucket.pace(1)
    assert clock.time == pytest.approx(2.5)


def test_no_limit_lifts_it_for_who_waits():
    clock = VirtualClock()
    bucket = TokenBucket(clock, 1e6)
    bucket.pace(60_000_000)
    clock.at(3.0, lambda: bucket.set_rate(0))
    for _ in range(10):
        bucket.pace(1_000_000_000)
    assert clock.time == 3.0
    assert bucket.quantum_bytes == 0


def test_the_same_limit_again_forgives_nothing():
    clock = VirtualClock()
    bucket = TokenBucket(clock, 1e6)
    bucket.pace(10_000_000)
    bucket.set_rate(1e6)
    bucket.pace(1)
    assert clock.time == pytest.approx(10.0)


@pytest.mark.parametrize("seed", range(20))
def test_limits_that_change_at_random_each_hold_in_their_time(seed):
    rng, clock = random.Random(seed), VirtualClock()
    bucket = TokenBucket(clock)
    for _ in range(10):
        rate = rng.choice(RATES)
        bucket.set_rate(rate)
        began = clock.time
        moved: list[tuple[float, int]] = []
        while clock.time < began + 1.5 and len(moved) < 2_000:
            size = pieces(rng, bucket)
            bucket.pace(size)
            moved.append((clock.time, size))
        assert most_in_a_second(moved) <= 1.05 * rate


def test_quanta_shrink_with_the_limit_down_to_what_calls_cost():
    bucket = TokenBucket(VirtualClock(), 1e9)
    assert bucket.quantum_bytes == 10_000_000
    bucket.set_rate(1e5)
    assert bucket.quantum_bytes == QUANTUM_BYTES_MIN


def test_a_negative_rate_is_a_bug():
    with pytest.raises(CheckFailed):
        TokenBucket(VirtualClock(), -1.0)


def test_threads_that_wait_go_when_the_limit_is_lifted_or_the_service_stops():
    """On real time, but nothing rests on it: without the notice they would wait for an hour."""
    for let_go in (lambda bucket: bucket.set_rate(0), lambda bucket: bucket.close()):
        bucket = TokenBucket(RealClock(), 1000.0)
        bucket.pace(3_600_000)
        threads = [threading.Thread(target=bucket.pace, args=(1,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        let_go(bucket)
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
