"""How large a run is and what befalls it: drawn from its seed, unless given."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import Tier
from kvstore.policy.choices import EVICTION_POLICIES

__all__ = ["LinkSpeed", "SimConfig", "draw_config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """Bytes a second, and seconds before the first of them."""

    bandwidth: float
    latency: float

    def seconds(self, size: int) -> float:
        """What so many bytes take."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """All that a run depends on, but its schedule. Shares are of transfers, or of turns."""

    seed: int
    # Engines at once, and the longest that one of them is ahead of its GPU, in steps.
    engines: int = 2
    lag: int = 2
    ranks: int = 1
    namespaces: int = 1
    gpu_frames: int = 16
    cpu_frames: int = 0
    disk_frames: int = 0
    transfer_blocks_max: int = 32
    transfers_per_link_max: int = 2
    writes_max: int = 3
    forget_lot_blocks: int = 4
    retained_blocks_max: int = 8
    queue_blocks_max: int = 65_536
    drop_tokens_max: int = 8
    # Drop or swap by what links and prefill cost, which changes now and then; else by length.
    by_cost: bool = False
    # The policy of eviction, by its place among those there are.
    eviction: int = 0
    block_bytes: int = 1 << 20
    links: Mapping[tuple[Tier, Tier], LinkSpeed]
    # Transfers that fail, take long, or overtake those before them.
    fail_share: float = 0.1
    slow_share: float = 0.02
    reorder_share: float = 0.2
    # Turns of an engine by which it dies, falls silent past its lease, or leaves in order.
    kill_share: float = 0.01
    silence_share: float = 0.005
    detach_share: float = 0.005
    # Turns of the whole by which the service is killed, is stopped for a while, meets a full disk or
    # a changed bit on it.
    restart_share: float = 0.0
    pause_share: float = 0.002
    disk_full_share: float = 0.01
    flip_share: float = 0.02
    # Turns by which a session, a tenant, a namespace or what an engine has written is forgotten.
    forget_share: float = 0.01
    # Turns after which the disk looks for such bits by itself, and reads of which blocks come late.
    scrub_share: float = 0.01
    late_share: float = 0.02
    # Turns after which it is looked whether room that was promised comes.
    audit_share: float = 0.02
    # Turns of the whole by which the service is drained, and goes on after a while.
    drain_share: float = 0.0
    # Whether somebody watches the store from its beginning.
    watched: bool = False
    # Engines that make unary calls instead of steps.
    single_share: float = 0.2
    # Of each tier, that the other tenant doesn't take.
    percent_of_a: int = 50
    # Whether turns go to disk only if they are worth it; of use where the policy of eviction learns that.
    judges_turns: bool = False
    # Of the GPU's frames, that are taken before what no session has is copied down while engines compute.
    copy_from_percent: int = 0
    # Of what engines begin, turns of chats that come back.
    chat_share: float = 0.0


def draw_config(seed: int, **given: object) -> SimConfig:
    """A configuration for a seed. What is given is not drawn, and does not change what else is."""
    names = {field.name for field in fields(SimConfig)}
    for name in given:
        if name not in names:
            raise ConfigInvalid(
                "no such number of a run", field=name, remedy="one of " + ", ".join(sorted(names))
            )
    rng = random.Random(f"{seed} config")
    disk = rng.choice([0, 3, 6, 20, 40, 40])
    cpu = rng.choice([2, 4, 6, 12, 24, 40]) if disk else rng.choice([0, 0, 3, 6, 12, 24])
    drawn: dict[str, Any] = {
        "engines": rng.randint(1, 4),
        "lag": rng.randint(0, 4),
        "ranks": rng.choice([1, 1, 2, 3, 4]),
        "namespaces": rng.choice([1, 1, 2]),
        "gpu_frames": rng.choice([5, 8, 12, 16, 24, 40]),
        "cpu_frames": cpu,
        "disk_frames": disk,
        "transfer_blocks_max": rng.choice([1, 2, 4, 32]),
        "transfers_per_link_max": rng.choice([1, 2, 4]),
        "drop_tokens_max": rng.choice([0, 4, 8, 12]),
        "links": _draw_links(rng),
        "fail_share": rng.choice([0.0, 0.02, 0.1, 0.3]),
        "slow_share": rng.choice([0.0, 0.02, 0.1]),
        "reorder_share": rng.choice([0.0, 0.2, 0.5]),
        "kill_share": rng.choice([0.0, 0.01, 0.03]),
        "silence_share": rng.choice([0.0, 0.005, 0.02]),
        "detach_share": rng.choice([0.0, 0.005, 0.02]),
        "restart_share": rng.choice([0.0, 0.003, 0.01]),
        "pause_share": rng.choice([0.0, 0.002]),
        "disk_full_share": rng.choice([0.0, 0.01, 0.03]),
        "flip_share": rng.choice([0.0, 0.02, 0.1]),
        "single_share": rng.choice([0.0, 0.2, 0.5]),
        "drain_share": rng.choice([0.0, 0.0, 0.01]),
        "watched": rng.choice([False, True]),
        "scrub_share": rng.choice([0.0, 0.01, 0.05]),
        "queue_blocks_max": rng.choice([3, 20, 65_536]),
        "late_share": rng.choice([0.0, 0.02, 0.1, 0.3]),
        "forget_share": rng.choice([0.0, 0.005, 0.03]),
        "forget_lot_blocks": rng.choice([1, 2, 5, 100]),
        "retained_blocks_max": rng.choice([0, 3, 8, 40]),
        "writes_max": rng.choice([1, 2, 3, 3]),
    }
    # Drawn apart, so that it changes nothing of what befalls the runs of older versions.
    drawn["percent_of_a"] = random.Random(f"{seed} shares").choice([50, 50, 0, 20, 100])
    drawn["by_cost"] = random.Random(f"{seed} policy").choice([False, True, True])
    drawn["eviction"] = random.Random(f"{seed} eviction").randrange(len(EVICTION_POLICIES))
    drawn["judges_turns"] = random.Random(f"{seed} judging").choice([False, True])
    drawn["copy_from_percent"] = random.Random(f"{seed} copies").choice([0, 50, 75, 100])
    config = SimConfig(seed=seed, **drawn)
    return replace(config, **given)  # type: ignore[arg-type]  # checked by name above


def _draw_links(rng: random.Random) -> dict[tuple[Tier, Tier], LinkSpeed]:
    """From a block a step's time and more to hundreds of blocks."""

    def draw(slowest: float) -> LinkSpeed:
        return LinkSpeed(bandwidth=slowest * 10 ** rng.uniform(0, 3), latency=10 ** rng.uniform(-5, -2))

    return {
        (Tier.GPU, Tier.CPU): draw(4e7),
        (Tier.CPU, Tier.GPU): draw(4e7),
        (Tier.CPU, Tier.DISK): draw(1e7),
        (Tier.DISK, Tier.CPU): draw(1e7),
    }
