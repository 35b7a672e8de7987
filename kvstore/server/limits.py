"""How fast each link may be: an operator's limits, as text and at work.

A limit is bytes a second, or a share of what the link can do with large transfers, as measured
(tiers/rates.py), not of what small blocks get out of it; then it follows the measurements. They may be set
before there are pools, and changed while blocks move.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import Link
from kvstore.server.sizes import format_bytes, parse_size
from kvstore.tiers.link_names import LINK_NAMES, LINKS, link_name
from kvstore.tiers.rates import LinkRates

__all__ = ["BYTES_PER_SECOND_MAX", "LinkLimits", "RateLimit", "parse_limits", "parse_rate"]

BYTES_PER_SECOND_MAX = 2**50
# A share's bytes a second are not changed for less: measurements are never the same twice.
DEAD_BAND = 0.1

SHARE = re.compile(r"(?P<percent>[0-9]+(\.[0-9]+)?) ?%")
UNLIMITED = "unlimited"
RATE_REMEDY = "write bytes a second like 500MB/s, a share of the measured bandwidth like 50%, or unlimited"


class RateLimit(Struct, frozen=True, kw_only=True):
    """One of them above zero, or neither: no limit."""

    bytes_per_second: int = 0
    share: float = 0.0

    def __str__(self) -> str:
        if self.share:
            return f"{self.share * 100:.4g} % of the measured bandwidth"
        return f"{format_bytes(self.bytes_per_second)}/s" if self.bytes_per_second else UNLIMITED


class LinkLimits:
    """On the thread that owns the store."""

    def __init__(self, links: Sequence[Link], initial: Mapping[Link, RateLimit]) -> None:
        self._by_link = {link: initial.get(link, RateLimit()) for link in links}
        self._rates = LinkRates()
        self._set_rate: Callable[[Link, float], None] = lambda link, rate: None
        # What was set last, in bytes a second; 0: no limit.
        self._effective = dict.fromkeys(links, 0.0)

    @property
    def by_link(self) -> Mapping[Link, RateLimit]:
        """Of the links that the service has."""
        return self._by_link

    def effective(self, link: Link) -> float:
        """Bytes a second; 0: no limit, or a share of what is not known yet."""
        return self._effective[link]

    def rule(self, rates: LinkRates, set_rate: Callable[[Link, float], None]) -> None:
        """There are movers now, and they are measured."""
        self._rates, self._set_rate = rates, set_rate
        self._effective = dict.fromkeys(self._by_link, 0.0)
        self.refresh()

    def update(self, changes: Mapping[Link, RateLimit]) -> None:
        """All links must be ones that there are. Holds from the next piece on."""
        self._by_link.update(changes)
        for link in changes:
            self._apply(link, self._wanted(link))

    def refresh(self) -> None:
        """Shares follow what is measured."""
        for link in self._by_link:
            wanted, now = self._wanted(link), self._effective[link]
            if not now or abs(wanted - now) > DEAD_BAND * now:
                self._apply(link, wanted)

    def _wanted(self, link: Link) -> float:
        limit = self._by_link[link]
        if limit.share:
            return limit.share * self._rates.rate(link).most_bytes_per_second
        return float(limit.bytes_per_second)

    def _apply(self, link: Link, rate: float) -> None:
        if rate != self._effective[link]:
            self._effective[link] = rate
            self._set_rate(link, rate)


def parse_rate(text: str, *, flag: str, value: str = "") -> RateLimit:
    """`2GB/s`, `50%` or `unlimited`. `value`: all that was typed, where `text` is a part of it."""
    text = text.strip()
    value = value or text
    if text.lower() == UNLIMITED:
        return RateLimit()
    match = SHARE.fullmatch(text)
    if match is not None:
        share = float(match["percent"]) / 100
        if not 0 < share <= 1:
            raise ConfigInvalid("no share", field=flag, value=value, remedy="above 0%, at most 100%")
        return RateLimit(share=share)
    try:
        size = parse_size(text.removesuffix("/s"), flag=flag)
    except ConfigInvalid as error:
        raise ConfigInvalid(error.message, field=flag, value=value, remedy=RATE_REMEDY) from None
    if not 0 < size <= BYTES_PER_SECOND_MAX:
        remedy = f"1 to {BYTES_PER_SECOND_MAX} bytes a second, or {UNLIMITED}"
        raise ConfigInvalid("no rate", field=flag, value=value, remedy=remedy)
    return RateLimit(bytes_per_second=size)


def parse_limits(texts: Sequence[str], *, flag: str, links: Sequence[Link] = LINKS) -> dict[Link, RateLimit]:
    """Each `LINK=RATE`, for links that there are. Of several for one link the last holds."""
    names = [link_name(link) for link in links]
    limits: dict[Link, RateLimit] = {}
    for text in texts:
        name, found, rate = text.partition("=")
        if not found or name.strip() not in names:
            message = "not LINK=RATE" if not found else "no such link here"
            remedy = f"like {(names or list(LINK_NAMES))[0]}=2GB/s; links: {', '.join(names) or 'none'}"
            raise ConfigInvalid(message, field=flag, value=text, remedy=remedy)
        limits[LINK_NAMES[name.strip()]] = parse_rate(rate, flag=flag, value=text)
    return limits


def is_share(value: float) -> bool:
    return math.isfinite(value) and 0 < value <= 1
