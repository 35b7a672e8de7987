"""Traces made for a test, of blocks of four tokens, and a machine whose times are round."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvstore.core.ports import EvictionPolicy
from kvstore.planner.machine import Machine, Sizes
from kvstore.planner.profile import LinkProfile, Profile
from kvstore.planner.requests import Request
from kvstore.policy.choices import make_swap
from kvstore.policy.eviction import Lru

__all__ = ["BLOCK_TOKENS", "ROUND", "Made", "machine", "request", "sizes"]

BLOCK_TOKENS = 4
# A block of 4 tokens is 40 bytes, and takes a second on each link.
SLOW = LinkProfile(bandwidth_bytes_per_second=40.0)
# A second for each token that is computed, and for each token of an answer but the first.
ROUND = Profile(
    name="round",
    alpha_seconds=0.0,
    beta_seconds=1.0,
    gamma_seconds=0.0,
    decode_seconds=1.0,
    # Block by block.
    growth_tokens=BLOCK_TOKENS,
    gpu_to_cpu=SLOW,
    cpu_to_gpu=SLOW,
    cpu_to_disk=SLOW,
    disk_to_cpu=SLOW,
)


class Made:
    """A trace that is not in a file."""

    name = "made"
    block_tokens = BLOCK_TOKENS

    def __init__(self, *requests: Request) -> None:
        self._requests = requests

    def requests(self) -> Iterator[Request]:
        return iter(self._requests)


def request(
    time: float,
    blocks: Sequence[int],
    *,
    tokens: int = 0,
    output: int = 0,
    session: str = "",
    answer: Sequence[int] = (),
) -> Request:
    """`tokens`: as many as the blocks hold, unless given."""
    return Request(
        time=time,
        input_tokens=tokens or BLOCK_TOKENS * len(blocks),
        output_tokens=output,
        block_ids=tuple(blocks),
        answer_ids=tuple(answer),
        session=session,
    )


def sizes(gpu: int, cpu: int = 0, disk: int = 0) -> Sizes:
    """Of so many blocks."""
    one = Sizes(gpu_bytes=gpu, kv_bytes_per_token=10, block_tokens=BLOCK_TOKENS)
    return replace(
        one,
        gpu_bytes=gpu * one.block_bytes,
        cpu_bytes=cpu * one.block_bytes,
        disk_bytes=disk * one.block_bytes,
    )


def machine(
    tiers: Sizes, profile: Profile = ROUND, eviction: EvictionPolicy | None = None, swap: str = "cost"
) -> Machine:
    return Machine(tiers, profile, eviction or Lru(), make_swap(swap))
