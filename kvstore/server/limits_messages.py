"""UpdateLimits, from the contract and to it."""

from collections.abc import Mapping, Sequence

from kvstore.core.types import Link, Tier, Watermarks
from kvstore.core.watermarks import MARKED_TIERS, check_watermarks
from kvstore.server.fields import refuse
from kvstore.server.limits import BYTES_PER_SECOND_MAX, LinkLimits, RateLimit, is_share
from kvstore.tiers.link_names import LINK_NAMES, link_name
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["decode_limits", "encode_limits", "encode_rate_limit"]

TIER_NAMES = {tier.name.lower(): tier for tier in MARKED_TIERS}
UNLIMITED_REMEDY = f"1 to {BYTES_PER_SECOND_MAX}; for no limit set `unlimited`"


def decode_limits(
    request: pb.UpdateLimitsRequest,
    links: Sequence[Link],
    present: Mapping[Tier, Watermarks],
) -> tuple[dict[Link, RateLimit], tuple[Watermarks, ...]]:
    """What is to change. `links` are those that the service has; `present`: the watermarks that hold now."""
    limits = request.limits
    names = {link_name(link): link for link in links}
    rates = {}
    for name, rate in sorted(limits.rates.items()):
        field = f"limits.rates[{name}]"
        if name not in names:
            known = "unknown link" if name not in LINK_NAMES else "the service has no such tier"
            refuse(field, name, known, f"one of {', '.join(names)}" if names else "add a tier with --cpu")
        rates[names[name]] = _rate(field, rate)
    watermarks = []
    for name in sorted({*limits.high_watermark, *limits.low_watermark}):
        if name not in TIER_NAMES:
            field = f"limits.{'high' if name in limits.high_watermark else 'low'}_watermark[{name}]"
            refuse(field, name, "no tier with watermarks", f"one of {', '.join(TIER_NAMES)}")
        now = present[TIER_NAMES[name]]
        high = limits.high_watermark.get(name, now.high)
        low = limits.low_watermark.get(name, now.low)
        watermarks.append(Watermarks(tier=TIER_NAMES[name], high=high, low=low))
    check_watermarks(watermarks)
    return rates, tuple(watermarks)


def encode_limits(limits: LinkLimits, watermarks: Mapping[Tier, Watermarks]) -> pb.Limits:
    message = pb.Limits()
    for link in limits.by_link:
        message.rates[link_name(link)].CopyFrom(encode_rate_limit(limits, link))
    for tier, marks in watermarks.items():
        message.high_watermark[tier.name.lower()] = marks.high
        message.low_watermark[tier.name.lower()] = marks.low
    return message


def encode_rate_limit(limits: LinkLimits, link: Link) -> pb.RateLimit:
    limit, effective = limits.by_link[link], round(limits.effective(link))
    if limit.share:
        return pb.RateLimit(share=limit.share, effective_bytes_per_second=effective)
    if limit.bytes_per_second:
        return pb.RateLimit(
            bytes_per_second=limit.bytes_per_second, effective_bytes_per_second=limit.bytes_per_second
        )
    return pb.RateLimit(unlimited=True)


def _rate(field: str, rate: pb.RateLimit) -> RateLimit:
    match rate.WhichOneof("kind"):
        case "bytes_per_second":
            if not 0 < rate.bytes_per_second <= BYTES_PER_SECOND_MAX:
                refuse(f"{field}.bytes_per_second", rate.bytes_per_second, "no rate", UNLIMITED_REMEDY)
            return RateLimit(bytes_per_second=rate.bytes_per_second)
        case "share":
            if not is_share(rate.share):
                refuse(f"{field}.share", rate.share, "no share", "above 0, at most 1")
            return RateLimit(share=rate.share)
        case "unlimited":
            if not rate.unlimited:
                refuse(f"{field}.unlimited", "false", "says nothing", "true, or leave the link out")
            return RateLimit()
        case _:
            refuse(field, "unset", "says nothing", "set bytes_per_second, share or unlimited")
