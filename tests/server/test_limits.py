"""UpdateLimits over the real service, and the command for it: what is set holds, what is wrong is refused
whole.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import (
    DEADLINE_SECONDS,
    Engine,
    Service,
    allocate,
    fill,
    free,
    refusal,
    tier,
    until,
)
from tests.server.limits import DISK, link, rates, update


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
