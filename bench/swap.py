"""Swaps: copies between pools, limits, what is asked for first: `python -m bench.swap [--json] [--quick]`.

The movers run as in the service; references are numpy's copies of the same bytes, in the same run, in turns.
"""

from collections.abc import Iterator

from bench.copies import copies
from bench.pacing import limits
from bench.report import Row, main
from bench.served import served
from bench.urgency import urgency

ROUNDS = 9
ROUNDS_QUICK = 2


def measure(quick: bool) -> Iterator[Row]:
    rounds = ROUNDS_QUICK if quick else ROUNDS
    yield from copies(rounds)
    yield from urgency(rounds)
    yield from limits(max(2, rounds // 2 + 1))
    yield from served(rounds)


if __name__ == "__main__":
    main("swap", "Swaps between the pools.", measure)
