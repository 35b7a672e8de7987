"""What the links cost, as the store is told: measured bandwidth, as the limit and the pieces leave it."""

import math

from kvstore.core.calls import SetCosts
from kvstore.core.types import COPY, LOAD, READ, WRITE, Link, LinkCost
from kvstore.server.clock import now
from kvstore.server.limits import LinkLimits
from kvstore.tiers.copying import COPY_PIECE_BYTES
from kvstore.tiers.movers import READ_PIECE_BYTES
from kvstore.tiers.rates import LinkRates

__all__ = ["LinkCosts"]

# Measurements are never the same twice: the store is told again when one is off by so much.
DEAD_BAND = 0.1


class LinkCosts:
    """`copy_bytes`: the pieces of copies."""

    def __init__(
        self, rates: LinkRates, limits: LinkLimits, block_bytes: int, copy_bytes: int = COPY_PIECE_BYTES
    ) -> None:
        # Each piece costs its fixed time; a write is one piece, however large.
        self._piece_bytes = {COPY: copy_bytes, LOAD: copy_bytes, READ: READ_PIECE_BYTES, WRITE: math.inf}
        self._rates = rates
        self._limits = limits
        self._block_bytes = block_bytes
        self._told: dict[Link, LinkCost] = {}

    def changed(self) -> SetCosts | None:
        """All that is known, if any of it has changed since it was told."""
        costs = {link: cost for link in self._limits.by_link if (cost := self._cost(link)) is not None}
        if all(link in self._told and _is_near(cost, self._told[link]) for link, cost in costs.items()):
            return None
        self._told = costs
        return SetCosts(time=now(), block_bytes=self._block_bytes, links=tuple(costs.values()))

    def _cost(self, link: Link) -> LinkCost | None:
        rate, limit = self._rates.rate(link), self._limits.effective(link) or math.inf
        bandwidth = math.inf
        if rate.is_known:
            piece = max(self._block_bytes, self._piece_bytes[link])
            each_byte = 1 / rate.bandwidth_bytes_per_second + rate.fixed_seconds / piece
            bandwidth = 1 / each_byte
        bandwidth = min(bandwidth, limit)
        if bandwidth == math.inf:
            return None
        source, target = link
        return LinkCost(
            source=source, target=target, bytes_per_second=bandwidth, fixed_seconds=rate.fixed_seconds
        )


def _is_near(cost: LinkCost, told: LinkCost) -> bool:
    fixed_bytes = abs(cost.fixed_seconds - told.fixed_seconds) * told.bytes_per_second
    return (
        abs(cost.bytes_per_second - told.bytes_per_second) <= DEAD_BAND * told.bytes_per_second
        and fixed_bytes <= DEAD_BAND * COPY_PIECE_BYTES
    )
