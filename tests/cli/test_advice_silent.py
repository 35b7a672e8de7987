"""Nothing is advised where there is nothing to say."""

import pytest

from kvstore.cli.advice import advise
from kvstore.v1 import kvstore_pb2 as pb
from tests.cli.figures import CPU, DISK, GPU, MB, link, moves, tenant, tier, usage

# Just on the right side of a threshold, or with too little to go by.
SILENT: dict[str, pb.Usage] = {
    "nothing has happened": pb.Usage(),
    "no engine has attached": pb.Usage(tiers=[pb.TierUsage(tier=each) for each in (GPU, CPU, DISK)]),
    "few sequences": usage(sequences=49),
    "few blocks": usage(queried=499, sequences=60, gpu_blocks=30),
    "short prompts, and memory is short": usage(queried=1_000, gpu_blocks=300, moves=moves(drops=50)),
    "prompts of a hundred tokens, many of them cached": usage(queried=6_250, gpu_blocks=2_000),
    "all fits, and hits come from below": usage(gpu_blocks=2_850, cpu_blocks=150, sessions=0),
    "there is no tier below": usage(tier(GPU), gpu_blocks=3_000, sessions=0),
    "hits between the two": usage(tier(GPU, blocks_evicted=900), gpu_blocks=5_000),
    "hits just enough": usage(gpu_blocks=2_000),
    "many hits, and nothing evicted": usage(gpu_blocks=9_000),
    "many hits, and a few evicted": usage(tier(GPU), tier(CPU, blocks_evicted=99), gpu_blocks=9_000),
    "most hits are on the GPU": usage(
        tier(GPU, blocks_evicted=900), tier(CPU), gpu_blocks=7_600, cpu_blocks=2_400
    ),
    "memory is full of cache": usage(tier(GPU, frames_cached=1000), gpu_blocks=3_000),
    "memory is full of what runs": usage(tier(GPU, frames_used=1000), gpu_blocks=3_000),
    "memory is in use, much of it reserved, but there is some": usage(
        tier(GPU, frames_used=790, frames_free=210, frames_idle=700), gpu_blocks=3_000
    ),
    "half is of use": usage(tier(GPU, frames_used=1000, frames_idle=499), gpu_blocks=3_000),
    "few swaps found no room": usage(gpu_blocks=3_000, moves=moves(swaps_out=91, drops_for_room=10)),
    "one swap of one": usage(gpu_blocks=3_000, moves=moves(drops_for_room=1)),
    "little waits for a link": usage(
        gpu_blocks=3_000, links=[link(GPU, CPU, waiting=499, limit=500 * MB, bandwidth=8e9)]
    ),
    "what the link can do is not known": usage(gpu_blocks=3_000, links=[link(GPU, CPU, waiting=10**9)]),
    "nobody waits for writes to disk": usage(
        gpu_blocks=3_000, links=[link(CPU, DISK, waiting=10**6, limit=MB, bandwidth=1e9)]
    ),
    "few writes are shed": usage(
        tier(GPU), tier(DISK, blocks_shed=100, blocks_moved_in=301), gpu_blocks=3_000
    ),
    "drops that were wanted": usage(gpu_blocks=3_000, moves=moves(drops=900)),
    "twice the size would have had a little more": usage(tier(GPU, ghost_hit_blocks=149), gpu_blocks=3_000),
    "few hits were lost to size": usage(tier(GPU, ghost_hit_blocks=99), sequences=40),
    "a tenant waits for what is its own fault": usage(
        gpu_blocks=3_000, tenants=[tenant("x", 800, 500, 9), tenant("y", 200, 500)]
    ),
    "who waits has its share": usage(
        gpu_blocks=3_000, tenants=[tenant("x", 600, 500), tenant("y", 300, 300, 9)]
    ),
    "all are within their shares": usage(
        gpu_blocks=3_000, tenants=[tenant("x", 500, 500), tenant("y", 200, 500, 9)]
    ),
    "a CPU tier as large as the GPU's": usage(
        tier(GPU, bytes_configured=4_000), tier(CPU, bytes_configured=4_000), gpu_blocks=3_000
    ),
    "no CPU tier": usage(tier(GPU, bytes_configured=4_000), gpu_blocks=3_000),
    "few preemptions": usage(gpu_blocks=3_000, moves=moves(reliefs=499)),
    "preemptions at the start": usage(queried=0, sequences=3, moves=moves(reliefs=9)),
}


@pytest.mark.parametrize("case", SILENT)
def test_nothing_is_said(case: str) -> None:
    assert advise(SILENT[case]) == []
