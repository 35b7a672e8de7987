"""A trace played on a machine, from the first request to the last answer, and what came of it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kvstore.core.errors import CheckFailed
from kvstore.core.invariants import check_invariants
from kvstore.core.types import WRITE, Link, blocks_for_tokens
from kvstore.planner.engine import Engine
from kvstore.planner.machine import Machine
from kvstore.planner.served import Served
from kvstore.planner.workload import Turn, Workload

__all__ = ["Loads", "Outcome", "Preemptions", "Rules", "play"]

DAY_SECONDS = 86_400.0
# Requests between two reports of how far it is.
REPORT_EVERY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a trace is played. `closed`: the next turn of a conversation comes when the answer before it was
    read; else at the trace's own time. `reuse`: without it nothing is cached, for comparison. `hints`: the
    end of each conversation is told."""

    closed: bool
    reuse: bool = True
    hints: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemptions:
    """How often a sequence that decoded had to leave the GPU: so many were swapped out, so many dropped.
    `dropped_for_room`: of these, who would have been swapped, had there been room below."""

    count: int
    swapped: int
    dropped: int
    dropped_for_room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Sequences that came in, or came back, with content below the GPU, where costs were known: so many
    loaded all of it, and so many its head or nothing, since to compute the rest was cheaper."""

    whole: int
    cut: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it. Blocks and tokens are those of prompts; by tier where the best copy of a block was."""

    requests: int
    # Would never fit the GPU tier. Their blocks and tokens count as read and not found, so that machines that
    # refuse more don't look better; nothing else counts them.
    requests_refused: int
    blocks_read: int
    blocks_found: tuple[int, int, int]
    tokens_read: int
    tokens_found: tuple[int, int, int]
    # Of the GPU, and what it would have taken more without what was found.
    prefill_seconds: float
    prefill_seconds_saved: float
    # Of it, what preemptions made it compute once more.
    prefill_seconds_again: float
    preemptions: Preemptions
    loads: Loads
    # From the first arrival to the last answer.
    seconds: float
    # From a request's arrival to its first token; of all requests, in the order of their ends.
    first_token_seconds: NDArray[np.float64]
    # Of that, until it had frames.
    wait_seconds: NDArray[np.float64]
    bytes_moved: dict[Link, int]
    running_most: int
    waiting_most: int
    # That the store has handled.
    events: int

    @property
    def hit_rate(self) -> float:
        return sum(self.blocks_found) / max(1, self.blocks_read)

    @property
    def token_hit_rate(self) -> float:
        return sum(self.tokens_found) / max(1, self.tokens_read)

    @property
    def gpu_busy_share(self) -> float:
        """Of the time, with prefill."""
        return self.prefill_seconds / self.seconds if self.seconds else 0.0

    @property
    def disk_write_bytes_per_day(self) -> float:
        return self.bytes_moved[WRITE] / self.seconds * DAY_SECONDS if self.seconds else 0.0

    def first_token_percentile(self, percent: float) -> float:
        """Seconds; 0 where nothing was served."""
        return (
            float(np.percentile(self.first_token_seconds, percent)) if self.first_token_seconds.size else 0.0
        )


def play(
    workload: Workload,
    machine: Machine,
    rules: Rules,
    report: Callable[[int], None] = lambda done: None,
) -> Outcome:
    """On a new machine. The same trace, machine and rules give the same outcome, always. `report` is told how
    many requests have ended, now and then."""
    run = _Run(workload, machine, rules, report)
    run.run()
    check_invariants(run.machine.store)
    return run.outcome()


class _Run:
    def __init__(
        self, workload: Workload, machine: Machine, rules: Rules, report: Callable[[int], None]
    ) -> None:
        self.machine = machine
        self._workload, self._rules, self._report = workload, rules, report
        self._engine = Engine(machine, workload, self._ended, reuse=rules.reuse, hints=rules.hints)
        # Those that come at a time of the trace's own, the next one last.
        self._coming = [turn for turn in reversed(workload.turns) if not (rules.closed and turn.place)]
        self._served: list[Served] = []
        self._done = 0

    def run(self) -> None:
        machine, clock = self.machine, self.machine.clock
        machine.beat()
        self._await_next()
        while self._done < len(self._workload.turns):
            time = clock.next_time
            if time is None:
                raise CheckFailed("requests wait, and nothing is to happen any more")
            clock.run_until(machine, time)
            self._engine.act()

    def _await_next(self) -> None:
        if self._coming:
            self.machine.clock.at(self._coming[-1].time, self._arrive)

    def _arrive(self) -> None:
        self._engine.arrive(self._coming.pop())
        self._await_next()

    def _ended(self, served: Served) -> None:
        self._done += 1
        if served.end >= 0:
            self._served.append(served)
        if self._done % REPORT_EVERY == 0:
            self._report(self._done)
        then = served.turn.next
        if self._rules.closed and then is not None:
            later = self.machine.time + self._think_seconds(served.turn, then)
            self.machine.clock.at(later, partial(self._engine.arrive, then))

    def _think_seconds(self, turn: Turn, then: Turn) -> float:
        """What the trace has between two turns, less what the answer would have taken alone on this
        machine."""
        profile = self.machine.profile
        answer = profile.prefill_seconds(0, turn.input_tokens) + profile.decode_seconds * turn.output_tokens
        return max(0.0, then.time - turn.time - answer)

    def outcome(self) -> Outcome:
        machine, engine, size = self.machine, self._engine, self._workload.block_tokens
        turns = self._workload.turns
        gpu, cpu, disk = machine.blocks_found
        moved = machine.store.usage().sequences
        return Outcome(
            requests=len(self._served),
            requests_refused=engine.refused,
            blocks_read=sum([blocks_for_tokens(turn.input_tokens, size) for turn in turns]),
            blocks_found=(gpu, cpu, disk),
            tokens_read=sum([turn.input_tokens for turn in turns]),
            tokens_found=(gpu * size, cpu * size, disk * size),
            prefill_seconds=engine.gpu.prefill_seconds,
            prefill_seconds_saved=engine.gpu.prefill_seconds_saved,
            prefill_seconds_again=engine.gpu.prefill_seconds_again,
            preemptions=Preemptions(
                count=engine.preemptions,
                swapped=moved.swaps_out,
                dropped=moved.drops,
                dropped_for_room=moved.drops_for_room,
            ),
            loads=Loads(whole=moved.loads_whole, cut=moved.loads_cut),
            seconds=max([served.end for served in self._served], default=0.0),
            first_token_seconds=np.array(
                [each.first_token - each.arrival for each in self._served], np.float64
            ),
            wait_seconds=np.array([each.admitted - each.arrival for each in self._served], np.float64),
            bytes_moved=machine.bytes_moved,
            running_most=engine.running_most,
            waiting_most=engine.waiting_most,
            events=machine.events,
        )
