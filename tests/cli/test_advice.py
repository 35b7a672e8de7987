"""What figures advise, case by case."""

import pytest

from kvstore.cli.advice import advise
from kvstore.v1 import kvstore_pb2 as pb
from tests.cli.figures import CPU, DISK, GPU, MB, link, moves, tenant, tier, usage

EXPIRED = pb.EngineUsage(frames_quarantined=900, peer_pids=[41, 42])

# Figures; what is advised; and words that it must say.
CASES: dict[str, tuple[pb.Usage, str, tuple[str, ...]]] = {
    "few hits": (usage(gpu_blocks=1_000, cpu_blocks=999), "hit_rate_low", ("20%", "block keys")),
    "no hits at all, and memory is short": (
        usage(moves=moves(swaps_out=30, drops=20)),
        "hit_rate_low",
        ("Only 0%",),
    ),
    "no shared prefix": (
        usage(gpu_blocks=499, moves=moves(swaps_out=30, drops=19)),
        "little_to_give",
        ("1,000 sequences admitted, 49 swaps or drops", "10,000 blocks", "5.0%", "block keys"),
    ),
    "prompts of tens of tokens": (
        usage(queried=6_249, gpu_blocks=6_000, cpu_blocks=200),
        "little_to_give",
        ("100 tokens each, in whole blocks of 16", "nothing to change"),
    ),
    "prompts of less than a block": (usage(queried=0), "little_to_give", ("no block", "block of 16")),
    "all fits and is active": (
        usage(gpu_blocks=2_880, cpu_blocks=120, sessions=0),
        "little_to_give",
        ("96.0% are on the GPU", "no session", "--cpu"),
    ),
    "the lowest tier loses what is used": (
        usage(tier(GPU), tier(CPU, blocks_evicted=100), gpu_blocks=5_001),
        "larger_tier",
        ("50%", "100 were evicted from CPU", "--cpu", "--disk"),
    ),
    "only a GPU tier": (
        usage(tier(GPU, blocks_evicted=5_000), gpu_blocks=8_000),
        "larger_tier",
        ("A larger --gpu pays, or a CPU tier (--cpu).",),
    ),
    "the disk is too small": (
        usage(tier(GPU), tier(CPU, blocks_evicted=900), tier(DISK, blocks_evicted=200), disk_blocks=8_000),
        "larger_tier",
        ("200 were evicted from disk", "A larger --disk-bytes pays."),
    ),
    "much comes from the disk, which has room": (
        usage(tier(GPU), tier(CPU, blocks_evicted=900), tier(DISK), gpu_blocks=4_000, disk_blocks=2_000),
        "larger_tier",
        ("33% of these in disk only", "900 were evicted from CPU", "A larger --cpu pays"),
    ),
    "much comes from the CPU tier, which loses nothing": (
        usage(tier(GPU, blocks_evicted=900), tier(CPU), cpu_blocks=6_000),
        "larger_tier",
        ("100% of these in CPU only", "A larger --gpu pays"),
    ),
    "a cap larger than its device": (
        usage(tier(GPU), tier(DISK, bytes_total=2_000, bytes_obtainable=1_999), gpu_blocks=3_000),
        "disk_room",
        ("may take 2,000 bytes", "room for 1,999", "smaller --disk-bytes"),
    ),
    "a CPU tier smaller than the GPU's": (
        usage(tier(GPU, bytes_configured=4_000), tier(CPU, bytes_configured=3_999), gpu_blocks=3_000),
        "small_cpu_tier",
        ("100% of the GPU tier", "--cpu more than --gpu"),
    ),
    "the same before the first engine": (
        usage(
            tier(GPU, 0, bytes_configured=4_000), tier(CPU, 0, bytes_configured=1_000), queried=0, sequences=0
        ),
        "small_cpu_tier",
        ("25% of the GPU tier",),
    ),
    "quarantine": (
        usage(tier(GPU, frames_used=900, frames_quarantined=900), gpu_blocks=3_000, engines=[EXPIRED]),
        "reserved",
        ("90% of the GPU frames are taken, and 0% are of use", "900 frames are in quarantine", "41, 42"),
    ),
    "limbo": (
        usage(tier(GPU, frames_used=900, frames_limbo=500, frames_free=100), gpu_blocks=3_000),
        "reserved",
        ("40% are of use", "500 frames are in limbo", "completed_step"),
    ),
    "idle sequences": (
        usage(tier(GPU, frames_used=1000, frames_idle=600, frames_limbo=100), gpu_blocks=3_000),
        "reserved",
        ("600 frames are held by sequences that are resident and don't run", "Swap"),
    ),
    "transfers that do not end": (
        usage(tier(GPU, frames_used=100, frames_free=100), gpu_blocks=3_000),
        "reserved",
        ("800 frames are of transfers that have not ended",),
    ),
    "swaps find no room": (
        usage(gpu_blocks=3_000, moves=moves(swaps_out=90, drops_for_room=10)),
        "swap_room",
        ("10 of 100 swaps found no room", "a larger --cpu"),
    ),
    "there is no room to swap to": (
        usage(tier(GPU), gpu_blocks=3_000, moves=moves(drops_for_room=10)),
        "swap_room",
        ("10 of 10 swaps found no room", "Give it a CPU tier: --cpu."),
    ),
    "more rests than there is room for": (
        usage(gpu_blocks=3_000, moves=moves(reliefs=500)),
        "preemptions",
        ("500 times, for 1,000 admissions", "--gpu"),
    ),
    "late reads": (
        usage(tier(GPU), tier(CPU, frames_free=50, frames_late=800), gpu_blocks=3_000),
        "reserved",
        ("95% of the CPU frames are taken", "800 frames are withheld", "late"),
    ),
    "swaps wait for a limit": (
        usage(gpu_blocks=3_000, links=[link(GPU, CPU, waiting=1_000, limit=500 * MB, bandwidth=8e9)]),
        "link_limit",
        ("the way from GPU to CPU: 2.0 s", "limit of 500 MB/s, of 8,000 MB/s", "--set gpu_to_cpu=RATE"),
    ),
    "loads wait for the device": (
        usage(gpu_blocks=3_000, links=[link(DISK, CPU, waiting=1_000, bandwidth=2e8)]),
        "link_limit",
        ("the way from disk to CPU: 5.0 s", "The device is the limit (200 MB/s)"),
    ),
    "a limit that is what the device can do": (
        usage(gpu_blocks=3_000, links=[link(CPU, GPU, waiting=10_000, limit=8_000 * MB, bandwidth=8e9)]),
        "link_limit",
        ("The device is the limit",),
    ),
    "writes to disk are shed": (
        usage(
            tier(GPU),
            tier(CPU),
            tier(DISK, blocks_shed=100, blocks_moved_in=300),
            gpu_blocks=3_000,
            links=[link(CPU, DISK, limit=10 * MB)],
        ),
        "shed",
        ("100 of 400 blocks", "limit of 10 MB/s", "--set cpu_to_disk=RATE"),
    ),
    "twice the size would have had more": (
        usage(
            tier(GPU, ghost_hit_blocks=250),
            tier(CPU, ghost_hit_blocks=250, ghost_hit_tokens=4_000, blocks_evicted=900),
            gpu_blocks=3_000,
            cpu_blocks=2_000,
        ),
        "ghost_hits",
        ("Twice the CPU tier would have had 5% more hits", "4,000 tokens", "A larger --cpu pays"),
    ),
    "twice the size would have had all": (
        usage(tier(GPU, ghost_hit_blocks=100), sequences=40),
        "ghost_hits",
        ("100 hits, and there was none", "--gpu"),
    ),
    "a tenant has what others wait for": (
        usage(
            gpu_blocks=3_000,
            tenants=[tenant("x", 800, 500, 7), tenant("y", 200, 300, 2), tenant("z", 0, 200)],
        ),
        "tenant_share",
        ("Tenant x has 300 frames of the GPU more than its share", "2 sequences", "--gpu"),
    ),
    "bad entries": (
        usage(tier(GPU), tier(CPU), tier(DISK, bad_entries=3), gpu_blocks=3_000),
        "bad_entries",
        ("Found wrong on disk and dropped: 3 blocks", "replace"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_thing_is_wrong_and_is_told(case: str) -> None:
    figures, about, words = CASES[case]
    [advice] = advise(figures)
    assert advice.about == about
    for each in words:
        assert each in advice.text


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("OSError: [Errno 30] Read-only file system", "mount the file system for writing again"),
        ("OSError: [Errno 28] No space left on device", "make room on its file system."),
        ("OSError: [Errno 122] Disk quota exceeded", "raise the quota"),
        ("OSError: [Errno 5] Input/output error", "kernel's log"),
        ("MapFullError: mdb_put: MDB_MAP_FULL", "a larger --disk-bytes."),
        ("full: 9000 of 9000 bytes held, 512 more to write", "make room on its file system, or"),
        ("damaged, stop and try it: x", "try `kvstore verify --repair`"),
        ("damaged: a page of the index", "try `kvstore verify --repair`"),
        ("something new", "look at the device and at the service's log"),
        ("", "the log says why"),
    ],
)
def test_a_degraded_disk_is_told_with_its_reason_and_a_remedy(reason: str, remedy: str) -> None:
    [advice] = advise(pb.Usage(tiers=[tier(GPU), tier(DISK, degraded=True, degraded_reason=reason)]))
    assert advice.about == "degraded"
    assert reason in advice.text
    assert remedy in advice.text


def test_what_matters_most_comes_first() -> None:
    figures = usage(tier(GPU, frames_used=900, frames_limbo=900), tier(CPU), tier(DISK, degraded=True))
    assert [each.about for each in advise(figures)] == ["degraded", "reserved", "little_to_give"]
