"""The numbers that the core needs, checked once. Where they come from is the shell's affair."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import TenantId

__all__ = [
    "COPY_FROM_SHARE",
    "OPERATIONS_MAX",
    "SHARE_ROUNDING",
    "TRANSFER_BYTES",
    "WRITES_MAX",
    "WRITE_TIMES",
    "StoreConfig",
    "transfer_blocks",
    "write_blocks",
]

# In one step, by the contract.
OPERATIONS_MAX = 4_096
# What shares may be more than 1 together because they are no binary fractions.
SHARE_ROUNDING = 1e-9

# What one transfer moves at the most: some milliseconds' work, and with it what is in flight in a link. Of
# small blocks not so many, for each costs the core a little.
TRANSFER_BYTES = 16 << 20
TRANSFER_BLOCKS_MAX = 64

# Writes to disk, each a transaction with syncs: while one ends, others keep the device busy.
WRITES_MAX = 3
# The more blocks share the syncs and the transaction, the less these weigh. But all writes that are under way
# together pin no more than this share of the CPU tier.
WRITE_TIMES = 2
WRITES_SHARE_MAX = 0.25

# `StoreConfig.copy_from_share` of a service: the quarter that is left takes some seconds to fill, in which
# copies are far ahead of who needs the room.
COPY_FROM_SHARE = 0.75


def transfer_blocks(block_bytes: int) -> int:
    """Blocks of a transfer; one block may be more than a transfer should be."""
    return max(1, min(TRANSFER_BLOCKS_MAX, TRANSFER_BYTES // block_bytes))


def write_blocks(block_bytes: int, cpu_frames: int) -> int:
    """Blocks of a write to disk: more than of another transfer where the CPU tier is large enough."""
    usual = transfer_blocks(block_bytes)
    return max(usual, min(WRITE_TIMES * usual, int(cpu_frames * WRITES_SHARE_MAX) // WRITES_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Frames a tier, tokens a block, tenants by name, and every bound of the core."""

    block_tokens: int
    gpu_frames: int
    # 0: no such tier.
    cpu_frames: int = 0
    disk_frames: int = 0
    # Tenants that may be named on the socket. The empty name stands for `default_tenant`.
    tenants: Mapping[str, TenantId] = field(default_factory=lambda: {"default": TenantId(1)})
    default_tenant: str = "default"
    # Of each tier, by tenant: the part that others don't take from it. Tenants that aren't named here have
    # equal parts of what is left.
    tenant_shares: Mapping[str, float] = field(default_factory=dict)
    engines_max: int = 64
    lease_seconds_max: float = 10.0
    # Share of the GPU's frames in use above which pressure is HIGH, and below which it is LOW again.
    high_watermark: float = 0.90
    low_watermark: float = 0.80
    sequences_max: int = 65_536
    operations_max: int = OPERATIONS_MAX
    tokens_max: int = 1 << 24
    transfer_blocks_max: int = 32
    # Of each urgency.
    transfers_per_link_max: int = 2
    # Writes to disk that are under way at once.
    writes_max: int = WRITES_MAX
    # Of a write; 0: as many as of other transfers.
    write_blocks_max: int = 0
    # Blocks that each tenant may have retained at once; 0: none.
    retained_blocks_max: int = 0
    # Blocks, and sessions, that a Forget takes out at once: some milliseconds, in which no step is answered.
    forget_lot_blocks: int = 512
    # Blocks that wait for their copy down in the background, and those that wait to be brought up ahead.
    queue_blocks_max: int = 65_536
    # Share of the CPU tier that can't be given up without loss above which writes to disk make way for
    # nobody, and below which they do again.
    cpu_high_watermark: float = 0.75
    cpu_low_watermark: float = 0.50
    # Whether a turn that is freed without a word goes to disk only if a policy finds it worth the write, and
    # not before it is about to leave the CPU tier; else each goes there at once.
    judges_turns: bool = False
    # Share of the GPU's frames that has to be taken before what no session has is copied down while engines
    # compute (`later.py`). 0: that goes down at once.
    copy_from_share: float = 0.0
    # How long background work makes way for what engines wait for.
    background_wait_seconds: float = 1.0

    def __post_init__(self) -> None:
        for name, low in (
            ("block_tokens", 1),
            ("gpu_frames", 1),
            ("cpu_frames", 0),
            ("disk_frames", 0),
            ("transfer_blocks_max", 1),
            ("transfers_per_link_max", 1),
            ("writes_max", 1),
            ("write_blocks_max", 0),
            ("queue_blocks_max", 1),
            ("retained_blocks_max", 0),
            ("forget_lot_blocks", 1),
        ):
            value = getattr(self, name)
            if value < low:
                raise ConfigInvalid("too small", field=name, value=value, remedy=f"at least {low}")
        if self.disk_frames and not self.cpu_frames:
            raise ConfigInvalid(
                "a disk tier needs a CPU tier to pass through",
                field="cpu_frames",
                value=self.cpu_frames,
                remedy="give the CPU tier memory or leave the disk tier out",
            )
        for low_name, high_name in (
            ("low_watermark", "high_watermark"),
            ("cpu_low_watermark", "cpu_high_watermark"),
        ):
            if not 0 < getattr(self, low_name) <= getattr(self, high_name) <= 1:
                raise ConfigInvalid(
                    "watermarks out of order",
                    field=low_name,
                    value=getattr(self, low_name),
                    remedy=f"0 < {low_name} <= {high_name} <= 1",
                )
        if not 0 <= self.background_wait_seconds < math.inf:
            raise ConfigInvalid(
                "not a time to wait",
                field="background_wait_seconds",
                value=self.background_wait_seconds,
                remedy="seconds, 0 or more",
            )
        if not 0 <= self.copy_from_share <= 1:
            raise ConfigInvalid(
                "not a share", field="copy_from_share", value=self.copy_from_share, remedy="0 to 1"
            )
        self._check_shares()
        if self.default_tenant not in self.tenants:
            raise ConfigInvalid(
                "not one of the tenants",
                field="default_tenant",
                value=self.default_tenant,
                remedy="name one of: " + ", ".join(sorted(self.tenants)),
            )

    def _check_shares(self) -> None:
        for name, share in self.tenant_shares.items():
            if name not in self.tenants:
                remedy = "name one of: " + ", ".join(sorted(self.tenants))
                raise ConfigInvalid(
                    "not one of the tenants", field="tenant_shares", value=name, remedy=remedy
                )
            if not 0 <= share <= 1:
                raise ConfigInvalid("not a share", field="tenant_shares", value=share, remedy="0 to 1")
        total = sum(self.tenant_shares.values())
        if total > 1 + SHARE_ROUNDING:
            remedy = "shares that make 1 together at most"
            raise ConfigInvalid("more than there is", field="tenant_shares", value=total, remedy=remedy)

    def share_of(self, tenant: str) -> float:
        """The part of each tier that others don't take from this tenant."""
        if tenant in self.tenant_shares:
            return self.tenant_shares[tenant]
        others = len(self.tenants) - len(self.tenant_shares)
        return max(0.0, 1 - sum(self.tenant_shares.values())) / others

    @property
    def frames(self) -> tuple[int, int, int]:
        """By tier."""
        return self.gpu_frames, self.cpu_frames, self.disk_frames

    @property
    def session_keys_max(self) -> int:
        """Keys that all sessions together may name: so many that each block in any tier could be two's."""
        return 2 * (self.gpu_frames + self.cpu_frames + self.disk_frames)

    @property
    def cpu_frames_reserved(self) -> int:
        """CPU frames kept for passage between disk and GPU: 2 %, at least 16, at most half."""
        if not self.disk_frames:
            return 0
        return max(1, min(self.cpu_frames // 2, max(16, self.cpu_frames // 50)))
