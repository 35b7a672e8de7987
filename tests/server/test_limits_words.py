"""Limits as text, and shares of what links are measured to do."""

import pytest

from kvstore.cli.limits import limit_words
from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import COPY, LOAD, READ, WRITE
from kvstore.server.limits import LinkLimits, RateLimit, parse_limits, parse_rate
from kvstore.tiers.rates import LinkRates
from kvstore.v1 import kvstore_pb2 as pb


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (pb.RateLimit(unlimited=True), "unlimited"),
        (pb.RateLimit(bytes_per_second=200_000_000, effective_bytes_per_second=200_000_000), "200 MB/s"),
        (pb.RateLimit(share=0.2, effective_bytes_per_second=620_000_000), "20 % of the measured 3.1 GB/s"),
        (pb.RateLimit(share=0.5), "50 % of a bandwidth not measured yet"),
    ],
)
def test_limits_for_people(limit: pb.RateLimit, words: str) -> None:
    assert limit_words(limit) == words


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("2GB/s", RateLimit(bytes_per_second=2_000_000_000)),
        ("1 MiB", RateLimit(bytes_per_second=1 << 20)),
        ("7", RateLimit(bytes_per_second=7)),
        ("50%", RateLimit(share=0.5)),
        ("100 %", RateLimit(share=1.0)),
        ("unlimited", RateLimit()),
        (" Unlimited ", RateLimit()),
    ],
)
def test_rates_as_text(text, limit):
    assert parse_rate(text, flag="--limit") == limit


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-5", "2GB/h", "fast", "1e9", "inf", "9999TiB"])
def test_what_is_no_rate(text):
    with pytest.raises(ConfigInvalid) as caught:
        parse_rate(text, flag="--limit")
    assert caught.value.remedy
    assert caught.value.field == "--limit"


def test_limits_as_flags_name_links_that_there_are():
    assert parse_limits(["gpu_to_cpu=1", "gpu_to_cpu=2"], flag="f") == {COPY: RateLimit(bytes_per_second=2)}
    for text in ("gpu_to_cpu", "disk_to_gpu=1", "=1"):
        with pytest.raises(ConfigInvalid):
            parse_limits([text], flag="f")
    with pytest.raises(ConfigInvalid, match="gpu_to_cpu, cpu_to_gpu"):
        parse_limits(["cpu_to_disk=1"], flag="f", links=(COPY, LOAD))


def test_a_share_follows_what_is_measured_but_not_every_shake_of_it():
    set_rates: list[tuple[object, float]] = []
    measured = LinkRates()
    limits = LinkLimits((WRITE, READ), {READ: RateLimit(share=0.5)})
    limits.rule(measured, lambda link, rate: set_rates.append((link, rate)))
    limits.refresh()
    assert not set_rates  # Of what is not known there is no share.
    measured.set_measured(READ, [(1000, 1e-6)], {})
    limits.refresh()
    [(link_, rate)] = set_rates
    assert link_ == READ
    assert rate == pytest.approx(0.5e9, rel=0.01) or rate == limits.effective(READ)
    measured.set_measured(READ, [(1000, 1.05e-6)], {})
    limits.refresh()
    assert len(set_rates) == 1
    measured.set_measured(READ, [(1000, 2e-6)], {})
    limits.refresh()
    assert len(set_rates) == 2
    assert set_rates[1][1] == pytest.approx(set_rates[0][1] / 2)
    limits.update({READ: RateLimit()})
    assert set_rates[-1] == (READ, 0.0)


def test_a_share_is_one_of_what_large_transfers_do_however_small_blocks_are() -> None:
    """A medium of 4 GB/s in which each block costs 20 us: with blocks of 4 KiB it does 0.2 GB/s."""

    def seconds(blocks: int) -> float:
        return 20e-6 * blocks + blocks * 4096 / 4e9

    measured, rates_set = LinkRates(), list[float]()
    limits = LinkLimits((COPY,), {COPY: RateLimit(share=0.5)})
    limits.rule(measured, lambda _, rate: rates_set.append(rate))
    measured.set_measured(COPY, [(1 << 22, 1e-3 + 1e-6), (1 << 21, 5e-4 + 1e-6), (4096, seconds(1))], {})
    for number in range(2_000):
        blocks = 1 + number % 32
        measured.note(COPY, blocks * 4096, seconds(blocks))
        limits.refresh()
    assert measured.rate(COPY).seconds(32 * 4096) == pytest.approx(seconds(32), rel=0.1)
    assert limits.effective(COPY) == pytest.approx(0.5 * (1 << 22) / 1e-3, rel=0.1)
    # What is large and moves slowly says that it is the link.
    for number in range(4_000):
        size = (1 + number % 4) << 20
        measured.note(COPY, size, size / 1e9)
        limits.refresh()
    assert limits.effective(COPY) == pytest.approx(0.5e9, rel=0.15)
