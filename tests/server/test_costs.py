"""What the store is told of its links: as measured, as limited, and only when it has changed."""

from kvstore.core.calls import SetCosts
from kvstore.core.types import COPY, LOAD, Link
from kvstore.server.costs import LinkCosts
from kvstore.server.limits import LinkLimits, RateLimit
from kvstore.tiers.rates import LinkRates

BLOCK_BYTES = 1 << 20
MB = 1 << 20


def measured(rates: LinkRates, link: Link, bytes_per_second: float, fixed: float = 0.0) -> None:
    sizes = [BLOCK_BYTES << n for n in range(4)]
    rates.set_measured(link, [(size, fixed + size / bytes_per_second) for size in sizes], {})


def costs_of(event: SetCosts | None) -> dict[Link, tuple[float, float]]:
    assert event is not None
    return {
        (each.source, each.target): (round(each.bytes_per_second / MB), round(each.fixed_seconds, 6))
        for each in event.links
    }


def test_nothing_is_told_of_what_is_not_known() -> None:
    rates, limits = LinkRates(), LinkLimits((COPY, LOAD), {})
    limits.rule(rates, lambda link, rate: None)
    costs = LinkCosts(rates, limits, BLOCK_BYTES)
    assert costs.changed() is None
    measured(rates, COPY, 1000 * MB)
    assert costs_of(costs.changed()) == {COPY: (1000, 0)}
    assert costs.changed() is None


def test_a_limit_is_what_a_link_can_do_and_a_fixed_cost_is_spread_over_its_pieces() -> None:
    rates, limits = LinkRates(), LinkLimits((COPY, LOAD), {})
    limits.rule(rates, lambda link, rate: None)
    costs = LinkCosts(rates, limits, BLOCK_BYTES)
    # A piece of 4 MiB takes 4 ms and 1 ms.
    measured(rates, COPY, 1000 * MB, 1e-3)
    measured(rates, LOAD, 1000 * MB)
    assert costs_of(costs.changed()) == {COPY: (800, 1e-3), LOAD: (1000, 0)}
    limits.update({LOAD: RateLimit(bytes_per_second=50 * MB)})
    assert costs_of(costs.changed())[LOAD] == (50, 0)
    limits.update({LOAD: RateLimit()})
    assert costs_of(costs.changed())[LOAD] == (1000, 0)


def test_it_is_told_again_when_it_is_off_by_a_tenth() -> None:
    rates, limits = LinkRates(), LinkLimits((COPY,), {})
    limits.rule(rates, lambda link, rate: None)
    costs = LinkCosts(rates, limits, BLOCK_BYTES)
    measured(rates, COPY, 1000 * MB)
    assert costs.changed() is not None
    measured(rates, COPY, 1050 * MB)
    assert costs.changed() is None
    measured(rates, COPY, 1150 * MB)
    assert costs_of(costs.changed()) == {COPY: (1150, 0)}
