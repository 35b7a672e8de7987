"""The disk: `python -m bench.disk [--json] [--quick] [--save]`.

BENCH_DISK names a folder on the device to be measured; else it is where temporary files go. Some 1.5 GiB are
free there, and given back in the end.
"""

import sys
from collections.abc import Iterator

from bench.disk_churn import churn
from bench.disk_moves import moves
from bench.disk_turn import turn
from bench.disk_waits import waits
from bench.report import Row, main

ROUNDS = 7
ROUNDS_QUICK = 2
# Of what takes long: a turn that is computed, a tier that is filled twenty times.
LONG_ROUNDS = 5


def measure(quick: bool) -> Iterator[Row]:
    rounds = ROUNDS_QUICK if quick else ROUNDS
    long_rounds = min(rounds, LONG_ROUNDS)
    yield from moves(rounds)
    yield from waits(rounds)
    yield from churn(long_rounds)
    turn_rows, why_not = turn(long_rounds)
    if why_not:
        print(f"no turn was timed: {why_not}", file=sys.stderr)
    yield from turn_rows


if __name__ == "__main__":
    main("disk", "The disk tier.", measure)
