"""Speed through the server, over that of a bare gRPC echo: `python -m bench.step [--json] [--quick]`.

Service and echo are processes of their own on Unix sockets; both are measured in the same run, in turns.
"""

from collections.abc import Iterator

from bench.engines import four_engines
from bench.forward import forward_passes
from bench.processes import servers
from bench.report import Row, main
from bench.roundtrip import echo_of_step, round_trips

ROUNDS = 20
ROUNDS_QUICK = 4


def measure(quick: bool) -> Iterator[Row]:
    rounds = ROUNDS_QUICK if quick else ROUNDS
    with servers() as addresses:
        yield from round_trips(addresses, rounds)
        yield from four_engines(addresses, rounds)
        yield from forward_passes(addresses, echo_of_step(addresses.service, columns=True), rounds)


if __name__ == "__main__":
    main("step", "Speed through the server.", measure)
