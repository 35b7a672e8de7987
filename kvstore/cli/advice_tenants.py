"""What the figures of tenants advise: one has more of the GPU than its share, and others wait for theirs."""

from collections.abc import Iterator

from kvstore.cli.advice_links import Advice
from kvstore.cli.texts import counted
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["advise_tenants"]

# What those who are named no more are called: they have no name that could be told.
NAMED_NO_MORE = "tenants that are named no more"


def advise_tenants(usage: pb.Usage) -> Iterator[Advice]:
    """Below the GPU nobody waits for another: what is cached there is taken back when it is wanted."""
    over = [(lent, tenant) for tenant in usage.tenants if (lent := _lent(tenant)) > 0]
    if not over:
        return
    lent, most = max(over, key=lambda each: each[0])
    waiting = sum(each.sequences_waiting for each in usage.tenants if each is not most and _lent(each) < 0)
    if waiting:
        name = f"Tenant {most.tenant}" if most.tenant else NAMED_NO_MORE.capitalize()
        yield Advice(
            "tenant_share",
            f"{name} has {counted(lent, 'frame')} of the GPU more than its share, while "
            f"{counted(waiting, 'sequence')} of tenants within theirs wait: what runs keeps its frames. "
            "Run fewer of its sequences at once, or raise --gpu.",
        )


def _lent(tenant: pb.TenantUsage) -> int:
    """GPU frames beyond its share; less than 0: it could have more."""
    gpu = [each for each in tenant.frames if each.tier == pb.TIER_GPU]
    return sum(each.frames_taken - each.frames_guaranteed for each in gpu)
