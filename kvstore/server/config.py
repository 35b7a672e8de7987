"""What `kvstore serve` was asked for: one frozen record, checked once, told flag by flag.

Nothing below this module reads flags or the environment. Whether the socket's place is good is seen
when it is taken (`sockets.py`), whether the disk folder is when it is opened (`tiers/disk.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from kvstore.core.config import SHARE_ROUNDING
from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import COPY, LOAD, Link
from kvstore.cuda.driver import DeviceFound
from kvstore.observe.journal import JOURNAL_BYTES_MIN
from kvstore.policy.choices import (
    DISK_ADMISSION_DEFAULT,
    DROP_TOKENS_MAX_DEFAULT,
    EVICTION_DEFAULT,
    EVICTION_POLICIES,
    SWAP_DEFAULT,
    SWAP_POLICIES,
    check_disk_admission,
)
from kvstore.server.gpus import check_gpu_memory
from kvstore.server.limits import RateLimit, parse_limits
from kvstore.server.metrics_http import parse_metrics_address
from kvstore.server.sizes import format_bytes, parse_share, parse_size
from kvstore.server.sockets import parse_address
from kvstore.tiers.disk import CAP_BYTES_MIN
from kvstore.tiers.limits import memory_available_bytes, memory_total_bytes
from kvstore.tiers.link_names import LINKS, link_name

__all__ = ["ServeConfig", "parse_config"]

TENANT_BYTES_MAX = 256
LEASE_SECONDS_MIN = 0.2
LEASE_SECONDS_MAX = 3_600.0
ENGINES_MAX = 4_096
DRAIN_SECONDS_MAX = 3_600.0
# A frame is whole pages: in less there is room for none.
TIER_BYTES_MIN = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """The first tenant is the default. `disk_path` None: no disk tier; `cpu_bytes` 0: no CPU tier."""

    socket: Path
    gpu_bytes: int
    # The UUID of the device of each rank; none: the GPU tier is host memory.
    gpu_devices: tuple[str, ...] = ()
    cpu_bytes: int = 0
    disk_path: Path | None = None
    disk_bytes: int = 0
    # What another format or another layout has left in the disk's folder may be deleted.
    wipe_incompatible: bool = False
    # The rate, in a second, at which all that is on disk is looked at for damage; 0: never.
    scrub_bytes: int = 0
    tenants: tuple[str, ...] = ("default",)
    # By tenant: the part of each tier that others don't take from it; equal parts of the rest for the others.
    tenant_shares: Mapping[str, float] = field(default_factory=dict)
    lease_seconds: float = 10.0
    engines_max: int = 64
    # "cost" or "length"; and the length up to which a sequence is dropped, for "cost" as long as it doesn't
    # know what prefill and links cost.
    eviction_policy: str = EVICTION_DEFAULT
    swap_policy: str = SWAP_DEFAULT
    drop_tokens_max: int = DROP_TOKENS_MAX_DEFAULT
    # "all" or "worth": which of the turns that were freed without a word go to disk.
    disk_admission: str = DISK_ADMISSION_DEFAULT
    # Of each tenant. 0: nothing is retained.
    retain_bytes: int = 0
    high_watermark: float = 0.90
    low_watermark: float = 0.80
    cpu_high_watermark: float = 0.75
    cpu_low_watermark: float = 0.50
    # For how long a stop writes what is worth keeping to disk; 0: only what is on its way there ends.
    drain_seconds: float = 0.0
    # None: no journal.
    journal_path: Path | None = None
    journal_bytes: int = 0
    # Of links that there are; others have no limit.
    limits: Mapping[Link, RateLimit] = field(default_factory=dict)
    # Host and port, on loopback. None: no metrics are served.
    metrics: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        if self.gpu_bytes <= 0:
            _refuse(
                "--gpu", self.gpu_bytes, "no memory for blocks that run", "give it a size, like 2GiB or 25%"
            )
        if self.cpu_bytes < 0:
            _refuse("--cpu", self.cpu_bytes, "negative", "0 for no CPU tier, or a size like 2GiB")
        _check_room("--gpu", self.gpu_bytes)
        _check_room("--cpu", self.cpu_bytes)
        self._check_disk()
        self._check_limits()
        self._check_journal()
        self._check_tenants()
        _check_between("--lease", self.lease_seconds, LEASE_SECONDS_MIN, LEASE_SECONDS_MAX)
        _check_between("--engines-max", self.engines_max, 1, ENGINES_MAX)
        _check_between("--drain-seconds", self.drain_seconds, 0, DRAIN_SECONDS_MAX)
        if self.eviction_policy not in EVICTION_POLICIES:
            remedy = "one of " + ", ".join(EVICTION_POLICIES)
            _refuse("--eviction-policy", self.eviction_policy, "no such policy", remedy)
        if self.swap_policy not in SWAP_POLICIES:
            _refuse("--swap-policy", self.swap_policy, "no such policy", " or ".join(SWAP_POLICIES))
        check_disk_admission(self.disk_admission, self.eviction_policy, has_disk=self.disk_path is not None)
        _check_between("--drop-tokens-max", self.drop_tokens_max, 0, 1 << 24)
        _check_between("--high-watermark", self.high_watermark, 0.01, 1.0)
        _check_between("--low-watermark", self.low_watermark, 0.01, self.high_watermark)
        _check_between("--cpu-high-watermark", self.cpu_high_watermark, 0.01, 1.0)
        _check_between("--cpu-low-watermark", self.cpu_low_watermark, 0.01, self.cpu_high_watermark)

    @property
    def links(self) -> tuple[Link, ...]:
        """Between the tiers that were asked for."""
        if not self.cpu_bytes:
            return ()
        return LINKS if self.disk_path is not None else (COPY, LOAD)

    def _check_limits(self) -> None:
        for link in self.limits.keys() - set(self.links):
            names = ", ".join(map(link_name, self.links)) or "none without --cpu"
            _refuse("--limit", link_name(link), "the service has no such link", f"links: {names}")

    def _check_disk(self) -> None:
        if self.disk_path is None:
            if self.disk_bytes:
                _refuse("--disk-bytes", self.disk_bytes, "no folder for it", "name one with --disk")
            if self.wipe_incompatible:
                _refuse("--wipe-incompatible", True, "no folder to wipe", "name one with --disk")
            return
        if not self.disk_bytes:
            remedy = "give the most that the tier may take, like --disk-bytes 20GiB"
            _refuse("--disk", self.disk_path, "needs --disk-bytes", remedy)
        if self.disk_bytes < CAP_BYTES_MIN:
            _refuse("--disk-bytes", self.disk_bytes, "too small", f"{format_bytes(CAP_BYTES_MIN)} or more")
        if not self.cpu_bytes:
            remedy = "give --cpu a size or leave --disk out"
            _refuse("--disk", self.disk_path, "a disk tier needs a CPU tier to pass through", remedy)

    def _check_journal(self) -> None:
        if self.journal_path is None:
            if self.journal_bytes:
                _refuse("--journal-bytes", self.journal_bytes, "no folder for it", "name one with --journal")
            return
        if not self.journal_bytes:
            remedy = "give the most that the journal may take, like --journal-bytes 1GiB"
            _refuse("--journal", self.journal_path, "needs --journal-bytes", remedy)
        if self.journal_bytes < JOURNAL_BYTES_MIN:
            least = f"{format_bytes(JOURNAL_BYTES_MIN)} or more"
            _refuse("--journal-bytes", self.journal_bytes, "too small", least)
        if self.journal_path == self.disk_path:
            _refuse("--journal", self.journal_path, "is the folder of --disk", "name a folder of its own")

    def _check_tenants(self) -> None:
        if not self.tenants:
            _refuse("--tenant", "", "no tenant", "name at least one")
        for tenant in self.tenants:
            # Printable first: what the shell gave in bytes that are no UTF-8 isn't, and can't be encoded.
            if not tenant or not tenant.isprintable() or len(tenant.encode()) > TENANT_BYTES_MAX:
                _refuse("--tenant", tenant, "not a name", f"1 to {TENANT_BYTES_MAX} printable bytes")
        if len(set(self.tenants)) < len(self.tenants):
            _refuse("--tenant", ", ".join(self.tenants), "named twice", "name each tenant once")
        for tenant in self.tenant_shares:
            if tenant not in self.tenants:
                remedy = "name one of: " + ", ".join(self.tenants)
                _refuse("--tenant-share", tenant, "not one of the tenants", remedy)
        if sum(self.tenant_shares.values()) > 1 + SHARE_ROUNDING:
            total = f"{sum(self.tenant_shares.values()):.1%}"
            _refuse("--tenant-share", total, "more than there is", "shares that make 100% together at most")


def parse_config(
    *,
    socket: str,
    gpu: str,
    cpu: str = "0",
    disk: str | None = None,
    disk_bytes: str = "0",
    wipe_incompatible: bool = False,
    scrub: str = "0",
    tenants: Sequence[str] = (),
    tenant_shares: Sequence[str] = (),
    lease: float = 10.0,
    engines_max: int = 64,
    eviction_policy: str = EVICTION_DEFAULT,
    swap_policy: str = SWAP_DEFAULT,
    drop_tokens_max: int = DROP_TOKENS_MAX_DEFAULT,
    disk_admission: str = DISK_ADMISSION_DEFAULT,
    retain_bytes: str = "25%",
    high_watermark: str = "90%",
    low_watermark: str = "80%",
    cpu_high_watermark: str = "75%",
    cpu_low_watermark: str = "50%",
    drain_seconds: float = 0.0,
    journal: str | None = None,
    journal_bytes: str = "0",
    limits: Sequence[str] = (),
    metrics: str | None = None,
    gpu_devices: Sequence[DeviceFound] = (),
    memory_bytes: int = 0,
) -> ServeConfig:
    """Flags as they were typed. `memory_bytes`: what shares are of, and the most; 0: the machine's.
    `gpu_devices`: of each rank; then a share for --gpu is one of their memory."""
    memory_bytes = memory_bytes or memory_total_bytes()
    if disk is not None and not disk.strip():
        _refuse("--disk", disk, "names no folder", "name one, or leave --disk out")
    if journal is not None and not journal.strip():
        _refuse("--journal", journal, "names no folder", "name one, or leave --journal out")
    of_devices = sum(device.memory_bytes for device in gpu_devices)
    gpu_bytes = parse_size(gpu, flag="--gpu", whole_bytes=of_devices or memory_bytes)
    cpu_bytes = parse_size(cpu, flag="--cpu", whole_bytes=memory_bytes)
    disk_bytes_max = parse_size(disk_bytes, flag="--disk-bytes")
    all_tiers = gpu_bytes + cpu_bytes + disk_bytes_max
    config = ServeConfig(
        socket=parse_address(socket),
        gpu_bytes=gpu_bytes,
        gpu_devices=tuple(device.uuid for device in gpu_devices),
        cpu_bytes=cpu_bytes,
        disk_path=Path(disk).absolute() if disk is not None else None,
        disk_bytes=disk_bytes_max,
        wipe_incompatible=wipe_incompatible,
        scrub_bytes=parse_size(scrub, flag="--scrub"),
        tenants=tuple(tenants) or ("default",),
        tenant_shares=_parse_shares(tenant_shares),
        lease_seconds=lease,
        engines_max=engines_max,
        eviction_policy=eviction_policy,
        swap_policy=swap_policy,
        drop_tokens_max=drop_tokens_max,
        disk_admission=disk_admission,
        retain_bytes=parse_size(retain_bytes, flag="--retain-bytes", whole_bytes=all_tiers),
        high_watermark=parse_share(high_watermark, flag="--high-watermark"),
        low_watermark=parse_share(low_watermark, flag="--low-watermark"),
        cpu_high_watermark=parse_share(cpu_high_watermark, flag="--cpu-high-watermark"),
        cpu_low_watermark=parse_share(cpu_low_watermark, flag="--cpu-low-watermark"),
        drain_seconds=drain_seconds,
        journal_path=Path(journal).absolute() if journal is not None else None,
        journal_bytes=parse_size(journal_bytes, flag="--journal-bytes"),
        limits=parse_limits(limits, flag="--limit"),
        metrics=parse_metrics_address(metrics) if metrics is not None else None,
    )
    if gpu_devices:
        check_gpu_memory(gpu_bytes, gpu_devices)
    _check_memory(config, memory_bytes)
    return config


def _parse_shares(texts: Sequence[str]) -> dict[str, float]:
    """NAME=SHARE each. A name may hold the sign as well."""
    shares: dict[str, float] = {}
    for text in texts:
        name, sign, share = text.rpartition("=")
        if not sign or name in shares:
            problem = "a tenant named twice" if sign else "no tenant with its share"
            _refuse("--tenant-share", text, problem, "write each as NAME=SHARE, like alice=50%")
        shares[name] = parse_share(share, flag="--tenant-share", value=text)
    return shares


def _check_memory(config: ServeConfig, memory_bytes: int) -> None:
    """Against all there is, not against what is free now: an engine of the service before may still
    hold its pools. What is free is looked at when the pools are made."""
    gpu_bytes = 0 if config.gpu_devices else config.gpu_bytes
    asked = gpu_bytes + config.cpu_bytes
    if asked > memory_bytes:
        _refuse(
            "--cpu" if config.gpu_devices else "--gpu and --cpu",
            f"{format_bytes(gpu_bytes)} + {format_bytes(config.cpu_bytes)} = {format_bytes(asked)}",
            f"more than the {format_bytes(memory_bytes)} of this machine or of its control group's limit",
            f"ask for less in all; {format_bytes(memory_available_bytes())} are free now",
        )


def _check_room(flag: str, size: int) -> None:
    if 0 < size < TIER_BYTES_MIN:
        _refuse(flag, size, "no room for a single block", f"at least {TIER_BYTES_MIN} bytes, like 2GiB")


def _check_between(flag: str, value: float, low: float, high: float) -> None:
    # NaN is in no order with anything, so it fails here too.
    if not (math.isfinite(value) and low <= value <= high):
        _refuse(flag, value, "out of bounds", f"{low:.12g} to {high:.12g}")


def _refuse(flag: str, value: object, message: str, remedy: str) -> NoReturn:
    raise ConfigInvalid(message, field=flag, value=value, remedy=remedy)
