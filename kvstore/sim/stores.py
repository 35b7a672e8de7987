"""Real stores, as large as a run or a test asks for."""

import math

from kvstore.core.config import StoreConfig
from kvstore.core.store import Store
from kvstore.core.types import TenantId
from kvstore.policy.choices import EVICTION_POLICIES, make_admission, make_eviction
from kvstore.policy.cost import CostModel
from kvstore.policy.swap import LengthThreshold
from kvstore.sim.config import SimConfig
from kvstore.sim.texts import BLOCK_TOKENS

__all__ = ["EVICTIONS", "TENANTS", "make_store", "store_of"]

# A run of a simulator names one by its place; the first is the plainest, which tests of the core rest on.
EVICTIONS = ("lru", *(name for name in EVICTION_POLICIES if name != "lru"))
TENANTS = {"a": TenantId(1), "b": TenantId(2)}


def make_store(
    *,
    drop_tokens_max: int = 8,
    by_cost: int = 0,
    eviction: int = 0,
    gpu_frames: int = 16,
    cpu_frames: int = 0,
    disk_frames: int = 0,
    engines_max: int = 64,
    sequences_max: int = 65_536,
    operations_max: int = 4_096,
    transfer_blocks_max: int = 32,
    transfers_per_link_max: int = 2,
    writes_max: int = 3,
    write_blocks_max: int = 0,
    forget_lot_blocks: int = 512,
    retained_blocks_max: int = 0,
    queue_blocks_max: int = 65_536,
    background_wait_seconds: float = 1.0,
    percent_of_a: int = 50,
    judges_turns: int = 0,
    copy_from_percent: int = 0,
) -> Store:
    config = StoreConfig(
        block_tokens=BLOCK_TOKENS,
        gpu_frames=gpu_frames,
        cpu_frames=cpu_frames,
        disk_frames=disk_frames,
        tenants=TENANTS,
        default_tenant="a",
        tenant_shares={"a": percent_of_a / 100},
        engines_max=engines_max,
        sequences_max=sequences_max,
        operations_max=operations_max,
        transfer_blocks_max=transfer_blocks_max,
        transfers_per_link_max=transfers_per_link_max,
        writes_max=writes_max,
        write_blocks_max=write_blocks_max,
        forget_lot_blocks=forget_lot_blocks,
        retained_blocks_max=retained_blocks_max,
        queue_blocks_max=queue_blocks_max,
        background_wait_seconds=background_wait_seconds,
        judges_turns=bool(judges_turns),
        copy_from_share=copy_from_percent / 100,
    )
    policy = CostModel(drop_tokens_max) if by_cost else LengthThreshold(drop_tokens_max)
    order = make_eviction(EVICTIONS[eviction], config.frames)
    return Store(config, order, policy, make_admission(order))


def store_of(config: SimConfig, disk_share: float = 1.0) -> Store:
    """As large as a run has it, but for its disk."""
    return make_store(
        gpu_frames=config.gpu_frames,
        cpu_frames=config.cpu_frames,
        disk_frames=math.ceil(config.disk_frames * disk_share),
        transfer_blocks_max=config.transfer_blocks_max,
        transfers_per_link_max=config.transfers_per_link_max,
        writes_max=config.writes_max,
        forget_lot_blocks=config.forget_lot_blocks,
        retained_blocks_max=config.retained_blocks_max,
        queue_blocks_max=config.queue_blocks_max,
        drop_tokens_max=config.drop_tokens_max,
        by_cost=config.by_cost,
        eviction=config.eviction,
        percent_of_a=config.percent_of_a,
        judges_turns=config.judges_turns,
        copy_from_percent=config.copy_from_percent,
    )
