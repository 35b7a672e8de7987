"""What the sizes of the tiers advise, whatever has happened so far."""

from collections.abc import Iterator

from kvstore.cli.advice_links import Advice
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["advise_sizes"]


def advise_sizes(usage: pb.Usage) -> Iterator[Advice]:
    """The CPU tier gets a copy of all that ends on the GPU, so its first part is what the GPU has as well."""
    sizes = {tier.tier: tier.bytes_configured for tier in usage.tiers}
    gpu, cpu = sizes.get(pb.TIER_GPU, 0), sizes.get(pb.TIER_CPU, 0)
    if 0 < cpu < gpu:
        yield Advice(
            "small_cpu_tier",
            f"The CPU tier is {cpu / gpu:.0%} of the GPU tier: nearly all that it keeps is on the GPU too, "
            "so it is of use for little but swaps. Give --cpu more than --gpu, better twice as much.",
        )
