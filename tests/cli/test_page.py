"""The page of `kvstore status`: everything is on it, in 80 columns, however large the figures."""

import io
import time

import pytest
from rich.console import Console

from kvstore.cli.advice import advise
from kvstore.cli.page import COLUMNS, show_page
from kvstore.v1 import kvstore_pb2 as pb

LARGE = 99_999_999
# Queues have bounds.
QUEUED = 999_999
TIERS = (pb.TIER_GPU, pb.TIER_CPU, pb.TIER_DISK)


def shown(usage: pb.Usage, width: int = COLUMNS) -> str:
    out = io.StringIO()
    show_page(usage, advise(usage), Console(file=out, width=width))
    return out.getvalue()


def fill(message, value: int = LARGE):
    """Every number of a message as large as this."""
    for field in message.DESCRIPTOR.fields:
        if field.type in (field.TYPE_UINT64, field.TYPE_UINT32, field.TYPE_DOUBLE) and not field.is_repeated:
            setattr(message, field.name, value)
    return message


def large_usage() -> pb.Usage:
    usage = fill(pb.Usage(build="10.20.30", store_epoch=2**64 - 1))
    usage.start_time.FromSeconds(int(time.time()) - 400 * 86_400)
    for tier in TIERS:
        usage.tiers.append(fill(pb.TierUsage(tier=tier, pressure=pb.PRESSURE_HIGH)))
        usage.tiers[-1].bytes_total = usage.tiers[-1].bytes_used = 900 << 40
        usage.tiers[-1].frames_free = usage.tiers[-1].frames_cached = 0
    usage.tiers[2].degraded = True
    usage.tiers[2].degraded_reason = "OSError: [Errno 28] No space left on device, " * 3
    for source, target in ((0, 1), (1, 0), (1, 2), (2, 1)):
        usage.links.append(fill(pb.LinkUsage(source=TIERS[source], target=TIERS[target])))
        usage.links[-1].lanes.append(pb.LaneUsage(urgency=pb.URGENCY_ASKED, blocks_waiting=QUEUED))
        usage.links[-1].blocks_under_way = QUEUED
        usage.links[-1].limit.effective_bytes_per_second = 2**33
        usage.links[-1].rate.bandwidth_bytes_per_second = 2**34
    for message in (usage.sequences, usage.prefix, usage.steps):
        fill(message)
    for tier in usage.tiers[:2]:
        tier.bad_entries = 0
    for number in range(100):
        tenant = usage.tenants.add(tenant=f"[bold]tenant {number}", sequences_waiting=QUEUED)
        for tier in usage.tiers:
            tenant.frames.add(tier=tier.tier, frames_taken=LARGE, frames_guaranteed=LARGE)
    for number in range(3):
        engine = usage.engines.add(build="[bold]vllm 0.99.1+cu131" * 5, sequences=65_536)
        engine.engine.name = f"engines/{number:08d}-0000"
        engine.engine.state = pb.Engine.ATTACHED
        engine.frames_quarantined = LARGE
        engine.engine.expire_time.FromSeconds(int(time.time()) + 3_600)
        engine.peer_pids.extend(range(4_000_000, 4_000_008))
    return usage


def test_the_page_fits_eighty_columns() -> None:
    text = shown(large_usage())
    assert max(map(len, text.splitlines())) <= COLUMNS
    # Only what engines call themselves may be cut.
    assert all("[bold]" in line for line in text.partition("Advice")[0].splitlines() if "…" in line)
    for words in (
        "10.20.30",
        "ffffffffffffffff",
        "up 400 d",
        "99,999,999",
        "900.0 TiB",
        "4000000 +7",
        "17.2 GB/s",
    ):
        assert words in text


def test_all_of_a_usage_is_on_the_page() -> None:
    """Each number is another, and each is found in the text."""
    number = 1000
    usage = pb.Usage(build="1.2.3", store_epoch=1)
    usage.start_time.GetCurrentTime()
    parts = [pb.TierUsage(tier=tier, pressure=pb.PRESSURE_LOW) for tier in TIERS]
    parts += [pb.LinkUsage(source=pb.TIER_CPU, target=pb.TIER_GPU), usage.sequences]  # type: ignore[list-item]
    wanted: set[str] = set()
    for message in parts:
        for field in message.DESCRIPTOR.fields:
            if field.type == field.TYPE_UINT64 and field.name not in NOT_AS_THEY_ARE:
                number += 1
                setattr(message, field.name, number)
                wanted.add(f"{number:,}")
    usage.tiers.extend(parts[:3])
    usage.links.append(parts[3])  # type: ignore[arg-type]
    text = shown(usage, 200)
    assert {each for each in wanted if each not in text} == set()


# In another form, or told as advice.
NOT_AS_THEY_ARE = {
    "bytes_configured",
    "bytes_total",
    "bytes_used",
    "bytes_obtainable",
    "bytes_pinned",
    "bytes_moved",
    "bad_entries",
    "read_errors",
    "write_errors",
    "delete_errors",
    "late_reads",
    "transfers",
    "blocks_started",
    "bytes_in_flight",
    "ghost_hit_tokens",
}


def test_shares_and_times_are_told() -> None:
    usage = large_usage()
    usage.prefix.CopyFrom(
        pb.PrefixUsage(
            sequences_admitted=60, blocks_queried=1000, gpu_blocks=250, cpu_blocks=5, disk_blocks=1
        )
    )
    usage.steps.CopyFrom(pb.StepUsage(steps=1000, operations=2500, store_seconds=0.06, call_seconds=0.2))
    text = shown(usage)
    words = " ".join(text.split())
    assert "Prefix hits 25.6% of 1,000 blocks (GPU 25.0%, CPU 0.5%, DISK 0.1%), 60 sequences" in words
    assert "Steps 1,000 of 2.5 operations, 0.060 ms in the store, 0.200 ms in the call" in words
    assert "health: DISK degraded, takes no writes: OSError: [Errno 28] No space left" in text
    assert text.index("\nAdvice\n  - Nothing is written to disk") > 0


def test_a_cap_larger_than_its_device_is_told() -> None:
    tiers = [pb.TierUsage(tier=pb.TIER_GPU, bytes_total=1 << 40), pb.TierUsage(tier=pb.TIER_DISK)]
    tiers[1].bytes_total, tiers[1].bytes_obtainable = 4 << 40, 3 << 40
    words = " ".join(shown(pb.Usage(tiers=tiers)).split())
    assert "memory 1.0 TiB 4.0 TiB" in words
    assert "obtainable - 3.0 TiB" in words
    assert "there is room for 3,298,534,883,328" in words


def test_tenants_are_told_with_their_shares_who_has_most_first() -> None:
    usage = pb.Usage(tiers=[pb.TierUsage(tier=pb.TIER_GPU, frames_total=200)])
    for number, name in enumerate(("a", "b", "")):
        tenant = usage.tenants.add(tenant=name, sequences_waiting=number)
        tenant.frames.add(tier=pb.TIER_GPU, frames_taken=10 + number, frames_guaranteed=100 - 50 * number)
    lines = [line.split() for line in shown(usage).splitlines()]
    begin = lines.index(["Tenants", "GPU", "(share)", "waiting"])
    assert lines[begin + 2 : begin + 5] == [
        ["named", "no", "more", "6.0%", "(0.0%)", "2"],
        ["b", "5.5%", "(25.0%)", "1"],
        ["a", "5.0%", "(50.0%)", "0"],
    ]
    assert "Tenants" not in shown(pb.Usage(tiers=usage.tiers))


def test_of_many_tenants_some_are_shown_and_the_others_counted() -> None:
    assert "and 92 more" in shown(large_usage())


def test_a_drain_is_told_beside_a_disk_that_fails() -> None:
    usage = large_usage()
    usage.draining = True
    text = shown(usage)
    assert "health: draining, takes no new work" in text
    assert "health: DISK degraded" in text
    assert "health: ok" not in shown(pb.Usage(draining=True))


def test_without_anything_wrong_there_is_no_advice() -> None:
    usage = pb.Usage(tiers=[pb.TierUsage(tier=pb.TIER_GPU, pressure=pb.PRESSURE_LOW)])
    text = shown(usage)
    assert "health: ok" in text
    assert "Advice" not in text
    assert "No engine has attached yet" in text


def test_pools_that_are_not_made_yet_are_shown_as_they_will_be() -> None:
    tiers = [
        pb.TierUsage(tier=pb.TIER_GPU, bytes_configured=20 << 30),
        pb.TierUsage(tier=pb.TIER_DISK, bytes_configured=5 << 30, bytes_total=5 << 30, bytes_used=1 << 30),
    ]
    lines = shown(pb.Usage(tiers=tiers)).splitlines()
    [memory] = [line.split() for line in lines if line.strip().startswith("memory")]
    [taken] = [line.split() for line in lines if line.strip().startswith("taken")]
    assert memory == ["memory", "20.0", "GiB", "5.0", "GiB"]
    assert taken == ["taken", "not", "yet", "made", "20.0%"]


def test_what_was_loaded_whole_and_what_was_cut_is_told() -> None:
    text = " ".join(shown(pb.Usage(sequences=pb.SequenceUsage(loads_whole=12, loads_cut=3))).split())
    assert "of loads weighed 12 whole, 3 cut" in text


@pytest.mark.parametrize(
    ("seconds", "told"), [(61, "1 min 1 s"), (3_660, "1 h 1 min"), (90_000, "1 d 1 h"), (-5, "0 min 0 s")]
)
def test_how_long_it_is_up(seconds: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = pb.Usage(build="1")
    usage.start_time.FromSeconds(1_000_000)
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0 + seconds)
    assert f", up {told}\n" in shown(usage)


def test_what_memory_a_pool_is_and_what_of_it_is_pinned_is_told() -> None:
    gpu = pb.TierUsage(
        tier=pb.TIER_GPU,
        memory_kind=pb.MEMORY_KIND_CUDA,
        device_uuids=["GPU-1", "GPU-2"],
        bytes_total=1 << 40,
    )
    cpu = pb.TierUsage(tier=pb.TIER_CPU, memory_kind=pb.MEMORY_KIND_HOST, bytes_pinned=3 << 30)
    words = " ".join(shown(pb.Usage(tiers=[gpu, cpu, pb.TierUsage(tier=pb.TIER_DISK)])).split())
    assert "kind cuda (2 GPUs) host -" in words
    assert "page-locked - 3.0 GiB -" in words


def test_a_gpu_that_stands_still_and_memory_that_is_not_pinned_are_told() -> None:
    gpu = pb.TierUsage(tier=pb.TIER_GPU, copy_stalled_seconds=4.0)
    cpu = pb.TierUsage(tier=pb.TIER_CPU, pinning_problem="4096 bytes of host RAM can't be pinned")
    words = " ".join(shown(pb.Usage(tiers=[gpu, cpu])).split())
    assert "stands still" not in words
    assert "health: CPU copies are slower: 4096 bytes of host RAM can't be pinned" in words
    gpu.copy_stalled_seconds = 65.0
    words = " ".join(shown(pb.Usage(tiers=[gpu, cpu])).split())
    assert "health: the GPU stands still: a copy has been waited for for" in words


def test_of_engines_is_shown_what_tells_them_apart() -> None:
    names = ["0123456789-a", "0123456788-b", "fedcba98-c"]
    usage = pb.Usage(engines=[pb.EngineUsage(engine=pb.Engine(name=f"engines/{name}")) for name in names])
    assert "fedcba98-c" in shown(usage)
    usage = pb.Usage(engines=usage.engines[1:])
    words = shown(usage).split()
    assert {"01234567", "fedcba98"} <= set(words)
