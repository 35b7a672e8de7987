"""A load on one set-up, and what it came to: from the answers, and from the server's own figures before,
while and after it ran."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Self

from bench.serving_load import Answer, Job, Run, run_closed, run_open
from bench.serving_server import Server

__all__ = ["Measured", "differing", "measure_closed", "measure_open", "percentile"]

Figures = Mapping[str, float]

# A look takes some milliseconds of the processor, on which the server computes.
LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Measured:
    """`watched`: the server's figures now and then while the load ran."""

    run: Run
    before: Figures
    after: Figures
    watched: Sequence[Figures]
    bytes_swapped: int
    # Of the processor, engine and service together.
    cpu_seconds: float

    @cached_property
    def answers(self) -> list[Answer]:
        return self.run.answers

    @property
    def seconds(self) -> float:
        return self.run.seconds

    @property
    def tokens_asked(self) -> int:
        """Of prompts."""
        return sum(answer.prompt_tokens for answer in self.answers)

    @property
    def tokens_computed(self) -> int:
        """Of prompts, and of what was computed again after a preemption."""
        return round(self._grown("prompt_tokens_computed_total"))

    @property
    def computed_share(self) -> float:
        """Of the tokens asked for; above 1 where preempted requests are computed again."""
        return self.tokens_computed / self.tokens_asked

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that were found in the cache, in whichever tier."""
        return sum(answer.cached_tokens for answer in self.answers) / self.tokens_asked

    @property
    def first_token_seconds(self) -> list[float]:
        return [answer.first_token_seconds for answer in self.answers]

    @property
    def gaps(self) -> list[float]:
        return [gap for answer in self.answers for gap in answer.gaps]

    @property
    def tokens_per_second(self) -> float:
        """Of answers."""
        return sum(answer.completion_tokens for answer in self.answers) / self.seconds

    @property
    def cpu_per_token(self) -> float:
        """Seconds of the processor for a token of an answer: what others on the machine add nothing to."""
        return self.cpu_seconds / sum(answer.completion_tokens for answer in self.answers)

    @property
    def preemptions(self) -> int:
        return round(self._grown("preemptions_total"))

    @property
    def steps(self) -> int:
        return round(self._grown("steps_total"))

    @property
    def at_once(self) -> float:
        """Requests that had KV memory at once, on average over the time at work; where nobody ever waited,
        the most that had any. Not a number where none was seen."""
        crowded = [each["requests_running"] for each in self._at_work]
        if crowded:
            return sum(crowded) / len(crowded)
        return max((each["requests_running"] for each in self.watched), default=math.nan) or math.nan

    @property
    def live_share(self) -> float:
        """Of the KV memory that requests held, the part that was written with tokens' KV: at work, or else
        over the whole time."""
        return self._share("kv_tokens_live", "kv_tokens_held")

    @property
    def used_share(self) -> float:
        """As `live_share`, of all memory that there is."""
        return self._share("kv_tokens_live", "kv_tokens_capacity")

    @property
    def _at_work(self) -> list[Figures]:
        """From when the first request had ended, as long as others waited for memory: before that a server
        fills up, a prompt after the other, and behind it there is nobody left to take what comes free."""
        ended, name = self.before["completion_tokens_total"], "completion_tokens_total"
        return [each for each in self.watched if each[name] > ended and each["requests_waiting"]]

    def _share(self, part: str, whole: str) -> float:
        looks = self._at_work or self.watched
        total = sum(each[whole] for each in looks)
        return sum(each[part] for each in looks) / total if total else math.nan

    def _grown(self, name: str) -> float:
        return self.after[name] - self.before[name]


def measure_closed(server: Server, jobs: Sequence[Job], clients: int) -> Measured:
    return _measure(server, lambda: run_closed(server.url, server.model, jobs, clients))


def measure_open(server: Server, jobs: Sequence[Job]) -> Measured:
    return _measure(server, lambda: run_open(server.url, server.model, jobs))


def percentile(samples: Iterable[float], percent: float) -> float:
    """By nearest rank: the least sample that so many per cent of all don't exceed."""
    ordered = sorted(samples)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1] if ordered else math.nan


def differing(a: Measured, b: Measured) -> int:
    """Answers of the same jobs that are not the same."""
    pairs = zip(a.answers, b.answers, strict=True)
    return sum(one.said != other.said for one, other in pairs)


def _measure(server: Server, load: Callable[[], Run]) -> Measured:
    # The service is asked first: what that costs it and us would be taken from the first tokens.
    swapped, before = server.bytes_swapped(), server.figures_at_rest()
    cpu = server.cpu_seconds()
    with _Watch(server.figures) as watch:
        run = load()
    after = server.figures_at_rest()
    cpu = server.cpu_seconds() - cpu
    return Measured(run, before, after, watch.seen, server.bytes_swapped() - swapped, cpu)


class _Watch(AbstractContextManager["_Watch"]):
    """A thread that looks now and then."""

    def __init__(self, look: Callable[[], Figures]) -> None:
        self.seen: list[Figures] = []
        self._look = look
        self._is_over = threading.Event()
        self._faults: list[Exception] = []
        self._thread = threading.Thread(target=self._run, name="watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if self._faults and error is None:
            raise self._faults[0]

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                began = time.monotonic()
                self.seen.append(self._look())
                self._is_over.wait(max(LOOK_SECONDS, 10 * (time.monotonic() - began)))
        except Exception as error:
            self._faults.append(error)
