"""UpdateLimits, and what is seen of the links."""

from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import (
    DEADLINE_SECONDS,
    Service,
)

__all__ = ["DISK", "link", "rates", "update"]

DISK = "64MiB"


def update(service: Service, limits: pb.Limits | None = None) -> pb.Limits:
    with service.stub() as stub:
        return stub.UpdateLimits(pb.UpdateLimitsRequest(limits=limits), timeout=DEADLINE_SECONDS)


def rates(**limits: pb.RateLimit) -> pb.Limits:
    return pb.Limits(rates=limits)


def link(usage: pb.Usage, source: pb.Tier.ValueType, target: pb.Tier.ValueType) -> pb.LinkUsage:
    [found] = [each for each in usage.links if (each.source, each.target) == (source, target)]
    return found
