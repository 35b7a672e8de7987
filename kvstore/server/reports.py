"""What the service tells of itself: usage, what is told beside it, and whether it serves, in words."""

import msgspec

from kvstore import __version__
from kvstore.core.types import Pressure, Revision, Tier
from kvstore.core.usage import TierUsage, Usage
from kvstore.server.disk_size import DiskSize
from kvstore.server.encode_usage import Facts, encode_usage
from kvstore.server.gpus import STALLED_SECONDS
from kvstore.server.parts import Parts
from kvstore.server.sizes import format_bytes
from kvstore.tiers.disk_folder import size_of
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Reports"]


class Reports:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        disk = parts.disk
        self._disk_size = DiskSize(lambda: size_of(disk.folder)) if disk is not None else None

    def usage(self) -> Usage:
        """Of the tiers that were asked for; they are empty before the first Attach."""
        sizes, running = self._sizes(), self._parts.running
        if running is None:
            tiers = tuple(_without_frames(tier) for tier, size in sizes.items() if size)
            return Usage(revision=Revision(0), tiers=tiers, engines=())
        usage = running.usage()
        return msgspec.structs.replace(usage, tiers=tuple(tier for tier in usage.tiers if sizes[tier.tier]))

    async def look(self) -> None:
        """Before a report: at what is not known without asking a device."""
        if self._disk_size is not None:
            await self._disk_size.look()

    def usage_message(self) -> pb.Usage:
        """With all that only the service knows, as the contract has it; of the disk what was last seen."""
        return encode_usage(self.usage(), self._parts.counts, self._facts())

    def health_page(self) -> tuple[bool, str]:
        """Whether engines are served, and what there is to say, a line each."""
        parts = self._parts
        if parts.failure is not None:
            return False, f"failed: {parts.failure}\n"
        serving = parts.health.is_serving
        lines = ["ok" if serving else "not serving"]
        if parts.health.is_draining:
            lines.append("draining: no new work is taken")
        if parts.running is None:
            lines.append("no engine has attached yet")
        if parts.disk is not None and parts.disk.degraded:
            lines.append(f"disk degraded: {parts.disk.degraded_reason}")
        lines += self._gpu_lines()
        return serving, "\n".join(lines) + "\n"

    def _sizes(self) -> dict[Tier, int]:
        config = self._parts.config
        return {Tier.GPU: config.gpu_bytes, Tier.CPU: config.cpu_bytes, Tier.DISK: config.disk_bytes}

    def _gpu_lines(self) -> list[str]:
        gpus, running = self._parts.gpus, self._parts.running
        lines = []
        if gpus is not None and (waited := gpus.stalled_seconds) > STALLED_SECONDS:
            lines.append(f"a copy has been waited for for {waited:.0f} seconds: the GPU stands still")
        pinning = running.pools.pinning if running is not None else None
        if pinning is not None and pinning.pinned_bytes < pinning.total_bytes:
            done = f"{format_bytes(pinning.pinned_bytes)} of {format_bytes(pinning.total_bytes)}"
            lines.append(f"the cpu tier is pinned to {done}")
        if pinning is not None and pinning.problem:
            lines.append(pinning.problem)
        return lines

    def _facts(self) -> Facts:
        parts, running = self._parts, self._parts.running
        return Facts(
            store_epoch=parts.store_epoch,
            build=__version__,
            start_wall=parts.start_wall,
            bytes_configured=self._sizes(),
            draining=parts.health.is_draining,
            disk_size=self._disk_size.last if self._disk_size is not None else None,
            layout=running.layout if running is not None else None,
            disk=parts.disk,
            limits=parts.limits.links,
            rates=parts.learnt.rates,
            movers=running.movers if running is not None else {},
            pools=running.pools if running is not None else None,
            gpus=parts.gpus,
        )


def _without_frames(tier: Tier) -> TierUsage:
    return TierUsage(
        tier=tier,
        frames_total=0,
        frames_free=0,
        frames_cached=0,
        frames_pinned=0,
        frames_quarantined=0,
        pressure=Pressure.LOW,
        blocks_moved_in=0,
        blocks_failed=0,
        blocks_evicted=0,
    )
