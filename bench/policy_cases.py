"""What eviction policies are measured on: recorded traces with the sizes and goals that were set, and made
ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from bench.replay import Hints
from bench.traces import Request, Trace

__all__ = ["CASES", "GENERATORS", "Case", "case_of", "ended_sessions", "halves"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`goals` by capacity: hit rates without hints."""

    trace: str
    capacities: Sequence[int]
    goals: dict[int, float] = field(default_factory=dict)


CASES = (
    Case(
        trace="mooncake_conversation",
        capacities=(2_000, 4_000, 8_000, 16_000, 32_000),
        goals={2_000: 0.108, 4_000: 0.150, 8_000: 0.205, 16_000: 0.282, 32_000: 0.334},
    ),
    Case(
        trace="mooncake_synthetic",
        capacities=(2_000, 4_000, 8_000),
        goals={2_000: 0.160, 4_000: 0.265, 8_000: 0.410},
    ),
    Case(
        trace="lmcache_agent",
        capacities=(500, 1_000, 2_000),
        goals={500: 0.410, 1_000: 0.585, 2_000: 0.805},
    ),
    Case(
        trace="tau_airline",
        capacities=(500, 1_000, 2_000),
        goals={500: 0.665, 1_000: 0.755, 2_000: 0.830},
    ),
)


def case_of(trace: Trace) -> Case:
    """The case that was set for this trace; of any other three sizes by its own, without goals."""
    for case in CASES:
        if trace.name.startswith(case.trace):
            return case
    sizes = sorted({max(1, trace.block_count // part) for part in (50, 15, 5)})
    return Case(trace=trace.name, capacities=sizes)


def halves(trace: Trace) -> tuple[Trace, Trace]:
    """Each by itself: what was chosen with a view to the first is to hold on the second, where all begins
    anew."""
    middle = len(trace.requests) // 2
    first = trace.part(0, middle, f"{trace.name}, first half")
    return first, trace.part(middle, len(trace.requests), f"{trace.name}, second half")


def ended_sessions(trace: Trace, share: float, seed: int) -> Hints:
    """Of the sessions that end in the trace, a share is told to be over with its last request. A request goes
    on from an earlier one that it holds whole, but for a last block that was not full."""
    generator = np.random.default_rng(seed)
    owner: dict[int, int] = {}
    goes_on: set[int] = set()
    for index, request in enumerate(trace.requests):
        blocks = request.blocks.tolist()
        known = next((depth for depth, block in enumerate(blocks) if block not in owner), len(blocks))
        if known > 1:
            before = owner[blocks[known - 1]]
            if known >= trace.requests[before].blocks.size - 1:
                goes_on.add(before)
        owner |= dict.fromkeys(blocks, index)
    ended = (index for index in range(len(trace.requests)) if index not in goes_on)
    return {index: [trace.requests[index].blocks] for index in ended if generator.random() < share}


# ---------------------------------------------------------------------- made traces


class _Maker:
    """Chains of new ids, and requests of them, ten a second."""

    def __init__(self) -> None:
        self._ids = count()
        self.requests: list[Request] = []

    def chain(self, length: int) -> NDArray[np.int64]:
        return np.fromiter((next(self._ids) for _ in range(length)), np.int64, length)

    def request(self, *chains: NDArray[np.int64], answer_tokens: int = 200) -> None:
        blocks = np.concatenate(chains)
        self.requests.append(
            Request(
                time=len(self.requests) / 10,
                prompt_tokens=512 * blocks.size,
                answer_tokens=answer_tokens,
                blocks=blocks,
            )
        )

    def trace(self, name: str) -> Trace:
        return Trace(name=name, requests=self.requests, block_count=next(self._ids))


def zipf_documents(name: str = "zipf documents", requests: int = 6_000, seed: int = 1) -> Trace:
    """Documents of very different popularity, each time with another question."""
    generator, maker = np.random.default_rng(seed), _Maker()
    documents = [maker.chain(int(length)) for length in generator.integers(5, 60, 800)]
    for rank in generator.zipf(1.2, requests):
        maker.request(documents[int(rank) % len(documents)], maker.chain(2))
    return maker.trace(name)


def scans(name: str = "scans", requests: int = 6_000, seed: int = 2) -> Trace:
    """A small set that is used all the time, and in between long prompts that are used once."""
    generator, maker = np.random.default_rng(seed), _Maker()
    documents = [maker.chain(20) for _ in range(60)]
    for is_scan in generator.random(requests) < 0.3:
        if is_scan:
            maker.request(maker.chain(100))
        else:
            maker.request(documents[int(generator.integers(len(documents)))], maker.chain(1))
    return maker.trace(name)


def loops(name: str = "loops", requests: int = 6_000) -> Trace:
    """The same documents over and over: where they don't all fit, recency is the worst that can be done."""
    maker = _Maker()
    documents = [maker.chain(20) for _ in range(200)]
    for index in range(requests):
        maker.request(documents[index % len(documents)], maker.chain(1))
    return maker.trace(name)


def chats(name: str = "chats", requests: int = 8_000, seed: int = 3) -> Trace:
    """Chats with a common head, which come and go; the more turns one has had, the likelier is another."""
    generator, maker = np.random.default_rng(seed), _Maker()
    head = maker.chain(3)
    # By time of the next turn: the chain so far, and how many turns it has had.
    due: list[tuple[float, int, NDArray[np.int64]]] = []
    for index in range(requests):
        due.sort(key=lambda chat: chat[0])
        if due and due[0][0] <= index:
            _, turn, chain = due.pop(0)
        else:
            turn, chain = 0, head
        chain = np.concatenate([chain, maker.chain(int(generator.integers(2, 16)))])
        maker.request(chain, answer_tokens=int(generator.integers(20, 800)))
        if generator.random() < min(0.8, 0.3 + 0.15 * turn):
            due.append((index + float(generator.exponential(400)), turn + 1, chain))
    return maker.trace(name)


def shifts(name: str = "shifts", phases: int = 6, seed: int = 4) -> Trace:
    """By turns documents that are read often, and chats of one turn."""
    generator, maker = np.random.default_rng(seed), _Maker()
    for phase in range(phases):
        documents = [maker.chain(25) for _ in range(150)]
        for _ in range(1_200):
            if phase % 2 == 0 or generator.random() < 0.2:
                maker.request(documents[int(generator.integers(len(documents)))], maker.chain(1))
            else:
                maker.request(maker.chain(int(generator.integers(5, 40))))
    return maker.trace(name)


GENERATORS: tuple[Callable[[], Trace], ...] = (zipf_documents, scans, loops, chats, shifts)
