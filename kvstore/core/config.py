"""The numbers that the core needs, checked once. Where they come from is the shell's affair."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import TenantId

__all__ = ["OPERATIONS_MAX", "StoreConfig"]

# In one step, by the contract.
OPERATIONS_MAX = 4_096


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
    engines_max: int = 64
    lease_seconds_max: float = 10.0
    # Share of the GPU's frames in use above which pressure is HIGH, and below which it is LOW again.
    high_watermark: float = 0.90
    low_watermark: float = 0.80
    sequences_max: int = 65_536
    operations_max: int = OPERATIONS_MAX
    tokens_max: int = 1 << 24
    transfer_blocks_max: int = 32
    transfers_per_link_max: int = 2
    # Blocks, and sessions, that a Forget takes out at once: some milliseconds, in which no step is answered.
    forget_lot_blocks: int = 1_024

    def __post_init__(self) -> None:
        for name, low in (("block_tokens", 1), ("gpu_frames", 1), ("cpu_frames", 0), ("disk_frames", 0)):
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
        if not 0 < self.low_watermark <= self.high_watermark <= 1:
            raise ConfigInvalid(
                "watermarks out of order",
                field="low_watermark",
                value=self.low_watermark,
                remedy="0 < low_watermark <= high_watermark <= 1",
            )
        if self.default_tenant not in self.tenants:
            raise ConfigInvalid(
                "not one of the tenants",
                field="default_tenant",
                value=self.default_tenant,
                remedy="name one of: " + ", ".join(sorted(self.tenants)),
            )

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
