"""What the figures of the links advise: whether they are the limit, or what was set for them is."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["FLAGS", "NAMES", "Advice", "advise_links", "advise_writes"]

# Work that waits for a link; and a limit below so much of what the link can do is what holds it up.
QUEUE_SECONDS, SHARE_OF_BANDWIDTH = 1.0, 0.9
# Of blocks that were to be written to disk, those that were not; and how many of these say something.
SHARE_OF_WRITES, BLOCKS_MIN = 0.25, 100

FLAGS = {pb.TIER_GPU: "--gpu", pb.TIER_CPU: "--cpu", pb.TIER_DISK: "--disk-bytes"}
NAMES = {pb.TIER_GPU: "GPU", pb.TIER_CPU: "CPU", pb.TIER_DISK: "disk"}


@dataclass(frozen=True, slots=True)
class Advice:
    """`about`: a word for scripts. `text`: a sentence or two for people."""

    about: str
    text: str


def advise_links(usage: pb.Usage) -> Iterator[Advice]:
    """Those that somebody waits for: nobody waits for what is written to disk."""
    for link in usage.links:
        limit, bandwidth = link.limit.effective_bytes_per_second, link.rate.bandwidth_bytes_per_second
        if link.target == pb.TIER_DISK or not (limit or bandwidth):
            continue
        blocks = link.blocks_under_way + sum(
            lane.blocks_waiting
            for lane in link.lanes
            if lane.urgency in (pb.URGENCY_ASKED, pb.URGENCY_NEEDED)
        )
        seconds = blocks * usage.block_bytes / (limit or bandwidth)
        if seconds >= QUEUE_SECONDS:
            name = f"{NAMES[link.source]} to {NAMES[link.target]}"
            yield Advice(
                "link_limit",
                f"Swaps wait for the way from {name}: {seconds:.1f} s of work are queued. {_of_link(link)}",
            )


def _of_link(link: pb.LinkUsage) -> str:
    limit, bandwidth = link.limit.effective_bytes_per_second, link.rate.bandwidth_bytes_per_second
    name = f"{pb.Tier.Name(link.source)}_to_{pb.Tier.Name(link.target)}".replace("TIER_", "").lower()
    if limit and (not bandwidth or limit < SHARE_OF_BANDWIDTH * bandwidth):
        measured = f", of {_rate(bandwidth)} that were measured" if bandwidth else ""
        return f"Its limit of {_rate(limit)}{measured} is what holds it up: kvstore limits --set {name}=RATE."
    return f"The device is the limit ({_rate(bandwidth)}): swap less, or give the tier above more room."


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e6:,.0f} MB/s"


def advise_writes(usage: pb.Usage) -> Iterator[Advice]:
    for tier in usage.tiers:
        wanted = tier.blocks_moved_in + tier.blocks_shed
        if tier.tier != pb.TIER_DISK or tier.degraded:
            continue
        if tier.blocks_shed >= BLOCKS_MIN and tier.blocks_shed >= SHARE_OF_WRITES * wanted:
            to_disk = [link for link in usage.links if link.target == pb.TIER_DISK]
            what = _of_link(to_disk[0]) if to_disk else "Give it a larger --disk-bytes."
            yield Advice(
                "shed",
                f"{tier.blocks_shed:,} of {wanted:,} blocks that were to be written to disk were not, for "
                f"want of time or room. {what}",
            )
