"""UpdateLimits over the real service: what is set holds while blocks move, what is wrong is refused whole."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from kvstore.cli.limits import limit_words
from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import COPY, LOAD, READ, WRITE
from kvstore.server.limits import LinkLimits, RateLimit, parse_limits, parse_rate
from kvstore.tiers.rates import LinkRates
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import (
    BLOCK_BYTES,
    DEADLINE_SECONDS,
    Engine,
    Service,
    allocate,
    content,
    fill,
    free,
    refusal,
    tier,
    until,
)

DISK = "64MiB"


@pytest.fixture
def service(make_service: Callable[..., Service], folder: Path) -> Service:
    return make_service("--disk", str(folder / "disk"), "--disk-bytes", DISK).start()


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """For those who change nothing in it."""
    folder = tmp_path_factory.mktemp("kv")
    service = Service(folder, "--disk", str(folder / "disk"), "--disk-bytes", DISK).start()
    yield service
    service.end()


def update(service: Service, limits: pb.Limits | None = None) -> pb.Limits:
    with service.stub() as stub:
        return stub.UpdateLimits(pb.UpdateLimitsRequest(limits=limits), timeout=DEADLINE_SECONDS)


def rates(**limits: pb.RateLimit) -> pb.Limits:
    return pb.Limits(rates=limits)


def link(usage: pb.Usage, source: pb.Tier.ValueType, target: pb.Tier.ValueType) -> pb.LinkUsage:
    [found] = [each for each in usage.links if (each.source, each.target) == (source, target)]
    return found


# ---------------------------------------------------------------------------- the contract


def test_an_empty_request_asks_and_changes_nothing(standing):
    now = update(standing)
    assert set(now.rates) == {"gpu_to_cpu", "cpu_to_gpu", "cpu_to_disk", "disk_to_cpu"}
    assert all(rate.unlimited for rate in now.rates.values())
    assert dict(now.high_watermark) == {"gpu": 0.9, "cpu": 0.75}
    assert dict(now.low_watermark) == {"gpu": 0.8, "cpu": 0.5}
    assert update(standing) == now


@pytest.mark.parametrize("attached", [False, True])
def test_what_is_set_holds_and_what_is_absent_stays(service, attached):
    with service.stub() as stub:
        engine = Engine(stub) if attached else None
        update(service, rates(gpu_to_cpu=pb.RateLimit(bytes_per_second=1_000_000)))
        update(service, pb.Limits(low_watermark={"gpu": 0.5}))
        update(service, rates(cpu_to_disk=pb.RateLimit(bytes_per_second=5)))
        now = update(service, rates(cpu_to_disk=pb.RateLimit(unlimited=True)))
        assert now.rates["gpu_to_cpu"].effective_bytes_per_second == 1_000_000
        assert now.rates["cpu_to_disk"].unlimited
        assert (now.high_watermark["gpu"], now.low_watermark["gpu"]) == (0.9, 0.5)
        engine = engine or Engine(stub)  # What was set before there was a store holds in it.
        assert update(service) == now
        engine.close()


def test_a_share_is_of_what_was_measured_when_the_pools_were_made(service):
    asked = rates(cpu_to_gpu=pb.RateLimit(share=0.5), disk_to_cpu=pb.RateLimit(share=0.25))
    before = update(service, asked)
    assert before.rates["cpu_to_gpu"].effective_bytes_per_second == 0
    with service.stub() as stub, Engine(stub):
        after = update(service)
        usage = stub.GetUsage(pb.GetUsageRequest(), timeout=DEADLINE_SECONDS)
    for name, source, target in (
        ("cpu_to_gpu", pb.TIER_CPU, pb.TIER_GPU),
        ("disk_to_cpu", pb.TIER_DISK, pb.TIER_CPU),
    ):
        seen = link(usage, source, target)
        assert seen.limit == after.rates[name]
        assert seen.rate.samples
        bandwidth = seen.rate.bandwidth_bytes_per_second
        assert after.rates[name].effective_bytes_per_second == pytest.approx(
            after.rates[name].share * bandwidth, rel=0.2
        )


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (rates(gpu_to_mars=pb.RateLimit(share=0.5)), "limits.rates[gpu_to_mars]"),
        (rates(gpu_to_disk=pb.RateLimit(share=0.5)), "limits.rates[gpu_to_disk]"),
        (rates(gpu_to_cpu=pb.RateLimit()), "limits.rates[gpu_to_cpu]"),
        (
            rates(gpu_to_cpu=pb.RateLimit(bytes_per_second=0)),
            "limits.rates[gpu_to_cpu].bytes_per_second",
        ),
        (
            rates(gpu_to_cpu=pb.RateLimit(bytes_per_second=2**63)),
            "limits.rates[gpu_to_cpu].bytes_per_second",
        ),
        (rates(gpu_to_cpu=pb.RateLimit(share=1.5)), "limits.rates[gpu_to_cpu].share"),
        (rates(gpu_to_cpu=pb.RateLimit(share=-0.1)), "limits.rates[gpu_to_cpu].share"),
        (rates(gpu_to_cpu=pb.RateLimit(share=float("nan"))), "limits.rates[gpu_to_cpu].share"),
        (rates(gpu_to_cpu=pb.RateLimit(unlimited=False)), "limits.rates[gpu_to_cpu].unlimited"),
        (pb.Limits(high_watermark={"disk": 0.5}), "limits.high_watermark[disk]"),
        (pb.Limits(low_watermark={"": 0.5}), "limits.low_watermark[]"),
        (pb.Limits(high_watermark={"gpu": 1.5}), "limits.high_watermark[gpu]"),
        (pb.Limits(high_watermark={"gpu": float("nan")}), "limits.high_watermark[gpu]"),
        (pb.Limits(high_watermark={"cpu": 0.4}), "limits.low_watermark[cpu]"),
        (pb.Limits(low_watermark={"gpu": 0.95}), "limits.low_watermark[gpu]"),
    ],
)
def test_what_is_wrong_is_refused_whole(standing, limits, field):
    """With a good part in front of it, which must not be taken either."""
    before = update(standing)
    limits = pb.Limits.FromString(limits.SerializeToString())
    limits.rates["cpu_to_gpu"].bytes_per_second = 123
    with pytest.raises(grpc.RpcError) as caught:
        update(standing, limits)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    told = refusal(caught.value)
    assert told.reason == "FIELD_INVALID"
    assert told.metadata["field"] == field
    assert told.metadata["remedy"]
    assert update(standing) == before


def test_links_of_tiers_that_are_not_there_are_refused(make_service):
    service = make_service(cpu_frames=0).start()
    assert not update(service).rates
    with pytest.raises(grpc.RpcError) as caught:
        update(service, rates(gpu_to_cpu=pb.RateLimit(share=0.5)))
    assert "--cpu" in refusal(caught.value).metadata["remedy"]


def test_watermarks_change_what_the_store_tells_of_pressure(service):
    with service.stub() as stub, Engine(stub) as engine:
        engine.step(allocate(1, 10 * 4))  # A third of the frames.
        update(service, pb.Limits(high_watermark={"gpu": 0.2}, low_watermark={"gpu": 0.1}))
        usage = stub.GetUsage(pb.GetUsageRequest(), timeout=DEADLINE_SECONDS)
        assert tier(usage, pb.TIER_GPU).pressure == pb.PRESSURE_HIGH
        update(service, pb.Limits(high_watermark={"gpu": 0.9}, low_watermark={"gpu": 0.8}))
        usage = stub.GetUsage(pb.GetUsageRequest(), timeout=DEADLINE_SECONDS)
        assert tier(usage, pb.TIER_GPU).pressure == pb.PRESSURE_LOW


def test_what_was_learnt_of_the_links_is_known_after_a_restart(make_service, folder):
    """To the last sample of the movers, so it was not measured again."""
    flags = ("--disk", str(folder / "disk"), "--disk-bytes", DISK)
    seen: list[list[pb.LinkRate]] = []
    for turn in range(2):
        service = make_service(*flags).start()
        with service.stub() as stub, Engine(stub) as engine:
            if not turn:
                fill(engine, 1, range(8), session="s")
                engine.step(free(1, pb.FreeRequest.SESSION))
                engine.step()

            def usage(stub=stub) -> pb.Usage:
                return stub.GetUsage(pb.GetUsageRequest(), timeout=DEADLINE_SECONDS)

            if not turn:
                until(usage, lambda now: link(now, pb.TIER_CPU, pb.TIER_DISK).blocks_moved == 8)
            until(usage, lambda now: not any(each.bytes_in_flight for each in now.links))
            seen.append([each.rate for each in usage().links])
        service.end()
    assert seen[0] == seen[1]
    assert all(rate.samples for rate in seen[0])


def test_limits_at_the_start(make_service, folder):
    service = make_service("--limit", "gpu_to_cpu=1MB/s", "--limit", "cpu_to_gpu=50%").start()
    now = update(service)
    assert now.rates["gpu_to_cpu"].bytes_per_second == 1_000_000
    assert now.rates["cpu_to_gpu"].share == 0.5


# ------------------------------------------------------------------------------ while it moves


def test_a_limit_slows_a_turn_on_its_way_to_disk_and_lifting_it_lets_it_go(service):
    """Slow by far more than a machine can be: at 1 byte a second nothing would come down in an hour."""
    with service.stub() as stub, Engine(stub) as engine:
        update(service, rates(gpu_to_cpu=pb.RateLimit(bytes_per_second=1)))
        # What a link begins with goes at once, and is paid for after.
        for sequence, keys in ((1, range(8)), (2, range(8, 16))):
            fill(engine, sequence, keys, session=f"s{sequence}")
            engine.step(free(sequence, pb.FreeRequest.SESSION))
            engine.step()

        def usage() -> pb.Usage:
            return stub.GetUsage(pb.GetUsageRequest(), timeout=DEADLINE_SECONDS)

        def copies() -> pb.LinkUsage:
            return link(usage(), pb.TIER_GPU, pb.TIER_CPU)

        held = until(copies, lambda seen: seen.blocks_started == 16)
        assert held.blocks_moved < 16
        assert held.bytes_in_flight > 0
        update(service, rates(gpu_to_cpu=pb.RateLimit(unlimited=True)))
        until(usage, lambda seen: link(seen, pb.TIER_CPU, pb.TIER_DISK).blocks_moved == 16)
        assert copies().blocks_moved == 16
        assert copies().busy_seconds > 0
        assert copies().bytes_in_flight == 0


def test_case_6_11_many_who_want_one_prefix_share_one_load(make_service):
    """CASES.md 6.11: each of its blocks moves up once, and all who wait for it wake at its end."""
    service = make_service(gpu_frames=64, cpu_frames=64).start()
    with service.stub() as stub, Engine(stub) as engine:
        keys = range(16)
        fill(engine, 1, keys)
        swap = pb.Operation(
            swap=pb.SwapRequest(
                sequence=1, direction=pb.SwapRequest.OUT, mode=pb.SwapRequest.KEEP, filled_tokens=64
            )
        )
        engine.step(swap)
        engine.step()

        def usage() -> pb.Usage:
            return stub.GetUsage(pb.GetUsageRequest(), timeout=DEADLINE_SECONDS)

        until(usage, lambda seen: link(seen, pb.TIER_GPU, pb.TIER_CPU).blocks_moved >= len(keys))
        # Others take all of the GPU, so the prefix is left below alone.
        engine.step()
        engine.step(allocate(2, 64 * 4))
        engine.step(free(2, pb.FreeRequest.DISCARD))
        engine.step()
        before = link(usage(), pb.TIER_CPU, pb.TIER_GPU)
        update(service, rates(cpu_to_gpu=pb.RateLimit(bytes_per_second=1)))
        waiting = range(10, 50)
        results = engine.step(*(allocate(number, 64 + 1, keys) for number in waiting)).results
        assert {each.allocate.state for each in results} == {pb.Sequence.SWAPPING_IN}
        assert {each.allocate.cached_tokens for each in results} == {64}
        update(service, rates(cpu_to_gpu=pb.RateLimit(unlimited=True)))
        resident: set[int] = set()
        end = time.monotonic() + DEADLINE_SECONDS
        while len(resident) < len(waiting):
            assert time.monotonic() < end
            for event in engine.step().events.events:
                moved = event.sequence_moved
                if moved.state == pb.Sequence.RESIDENT:
                    resident.add(moved.sequence)
                    table = moved.block_table
        after = link(usage(), pb.TIER_CPU, pb.TIER_GPU)
        assert after.blocks_moved - before.blocks_moved == len(keys)
        assert all(engine.read(frame) == content(number) for number, frame in zip(keys, table, strict=False))
        assert len(content(0)) == BLOCK_BYTES


# ------------------------------------------------------------------------------- the command


def run(service: Service, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvstore", "limits", "--socket", str(service.socket), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_shows_and_sets(service):
    shown = run(service)
    assert shown.returncode == 0
    assert "gpu_to_cpu" in shown.stdout
    assert "unlimited" in shown.stdout
    done = run(
        service, "--set", "gpu_to_cpu=2GB/s", "--set", "cpu_to_disk=50%", "--high-watermark", "cpu=95%"
    )
    assert done.returncode == 0, done.stderr
    assert "2,000,000,000" in done.stdout
    told = json.loads(run(service, "--json").stdout)
    assert told["rates"]["gpu_to_cpu"]["bytes_per_second"] == "2000000000"
    assert told["rates"]["cpu_to_disk"] == {"share": 0.5}
    assert "50 % of a bandwidth not measured yet" in done.stdout
    assert "2 GB/s" in done.stdout
    assert told["high_watermark"]["cpu"] == 0.95


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--set", "gpu_to_cpu"], "NAME=VALUE"),
        (["--set", "gpu_to_cpu=fast"], "500MB/s"),
        (["--set", "gpu_to_cpu=0"], "unlimited"),
        (["--set", "mars=1GB/s"], "one of gpu_to_cpu"),
        (["--high-watermark", "gpu=lots"], "90%"),
        (["--low-watermark", "gpu=99%"], "at most the high one"),
    ],
)
def test_the_command_refuses_with_a_remedy(standing, flags, told):
    done = run(standing, *flags)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------- texts, shares


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
