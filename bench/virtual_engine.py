"""A store, links and a GPU in virtual time, and an engine that drives them through `Store.handle` alone.

The GPU runs one step after the other: a decode batch comes by at fixed intervals, whatever else there is, and
prefill goes on between, pass by pass. The store hears of all of it as of a real engine, by the timings in its
steps. A link does its transfers in turn, each with a fixed cost.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import cast

from kvstore.core.answers import SequenceAnswer, StepAnswer
from kvstore.core.calls import Attach, GetSequence, SetCosts, Step
from kvstore.core.config import StoreConfig
from kvstore.core.effects import Effects, Transfer
from kvstore.core.events import Event, Tick, TransferEnded
from kvstore.core.operations import Operation, Result
from kvstore.core.store import Store
from kvstore.core.types import (
    COPY,
    LOAD,
    EngineId,
    Link,
    LinkCost,
    NamespaceId,
    SequenceId,
    StepNumber,
    StepTiming,
    WriterId,
)
from kvstore.policy.cost import CostModel
from kvstore.policy.eviction import Lru

__all__ = ["Machine", "VirtualEngine"]

BLOCK_TOKENS = 16
TICK_SECONDS = 0.1
# A decode batch: its length in time, its sequences and their contexts together.
DECODE_SECONDS, DECODE_SEQUENCES, DECODE_CONTEXT = 1e-3, 8, 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What things take. Defaults: an 8B model (128 KiB of KV a token) on a large GPU at half its peak."""

    bytes_per_second: float
    load: float = 0.0
    fixed_seconds: float = 30e-6
    token_bytes: int = 131_072
    pass_tokens: int = 512
    pass_seconds: float = 2e-3
    token_seconds: float = 4.06e-5
    context_seconds: float = 1.35e-9

    def prefill_seconds(self, before: int, tokens: int) -> float:
        context = before * tokens + tokens * tokens / 2
        return self.pass_seconds + self.token_seconds * tokens + self.context_seconds * context


class VirtualEngine:
    """One engine, attached. `now` is the time; `run` lets things happen until something is so."""

    def __init__(self, machine: Machine, gpu_frames: int, cpu_frames: int) -> None:
        self.machine = machine
        self.now = 0.0
        self.store = Store(
            StoreConfig(
                block_tokens=BLOCK_TOKENS,
                gpu_frames=gpu_frames,
                cpu_frames=cpu_frames,
                lease_seconds_max=3600.0,
            ),
            Lru(),
            CostModel(64),
        )
        self._id = EngineId("00000000-0000-4000-8000-000000000001")
        self._step = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._link_free = {COPY: 0.0, LOAD: 0.0}
        # Passes of prefill that wait: tokens before them, and their own.
        self._passes: deque[tuple[int, int]] = deque()
        self._decodes_due = 0
        self._gpu_works = False
        self._handle(
            Attach(
                time=self.now,
                engine=self._id,
                request_id="r",
                namespace=NamespaceId(1),
                writer=WriterId(1),
                build="virtual",
                lease_seconds=3600.0,
            )
        )
        self._handle(
            SetCosts(
                time=self.now,
                block_bytes=machine.token_bytes * BLOCK_TOKENS,
                links=tuple(self._cost(link) for link in (COPY, LOAD)),
            )
        )
        self.step()
        self._at(0.0, self._tick)
        if machine.load:
            self._at(0.0, self._decode_due)

    def _cost(self, link: Link) -> LinkCost:
        return LinkCost(
            source=link[0],
            target=link[1],
            bytes_per_second=self.machine.bytes_per_second,
            fixed_seconds=self.machine.fixed_seconds,
        )

    # ------------------------------------------------------------------------ what is asked

    def step(self, *operations: Operation, timings: tuple[StepTiming, ...] = ()) -> tuple[Result, ...]:
        """A step; all work before it has completed."""
        self._step += 1
        event = Step(
            time=self.now,
            engine=self._id,
            step=StepNumber(self._step),
            completed_step=StepNumber(self._step - 1),
            operations=operations,
            timings=timings,
        )
        return cast(StepAnswer, self._handle(event).answer).results

    def look(self, sequence: int) -> SequenceAnswer:
        event = GetSequence(time=self.now, engine=self._id, sequence=SequenceId(sequence))
        return cast(SequenceAnswer, self._handle(event).answer)

    def prefill(self, before: int, end: int) -> None:
        """Puts the passes from token `before` to `end` on the GPU."""
        while before < end:
            tokens = min(self.machine.pass_tokens, end - before)
            self._passes.append((before, tokens))
            before += tokens
        self._work()

    @property
    def has_caught_up(self) -> bool:
        """No prefill is left, and nothing that came by meanwhile."""
        return not self._passes and not self._decodes_due and not self._gpu_works

    # -------------------------------------------------------------------------- what happens

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            self.now, _, action = heapq.heappop(self._due)
            action()

    def rest(self, seconds: float) -> None:
        end = self.now + seconds
        self._at(end, lambda: None)
        self.run(lambda: self.now >= end)

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time, next(self._order), action))

    def _handle(self, event: Event) -> Effects:
        effects = self.store.handle(event)
        for transfer in effects.transfers:
            self._move(transfer)
        return effects

    def _tick(self) -> None:
        self._handle(Tick(time=self.now))
        self._at(self.now + TICK_SECONDS, self._tick)

    def _move(self, transfer: Transfer) -> None:
        link = transfer.source, transfer.target
        size = len(transfer.source_frames) * BLOCK_TOKENS * self.machine.token_bytes
        seconds = self.machine.fixed_seconds + size / self.machine.bytes_per_second
        end = self._link_free[link] = max(self.now, self._link_free[link]) + seconds
        self._at(end, lambda: self._end(transfer))

    def _end(self, transfer: Transfer) -> None:
        self._handle(TransferEnded(time=self.now, transfer=transfer.id))

    def _decode_due(self) -> None:
        self._decodes_due += 1
        self._at(self.now + DECODE_SECONDS / self.machine.load, self._decode_due)
        self._work()

    def _work(self) -> None:
        """The next step on the GPU: decode goes first."""
        if self._gpu_works:
            return
        if self._decodes_due:
            self._decodes_due -= 1
            self._begin(DECODE_SECONDS, StepTiming(**_DECODED, step=StepNumber(0), elapsed_seconds=0.0))
        elif self._passes:
            before, tokens = self._passes[0]
            context = before * tokens + tokens * tokens // 2
            timing = StepTiming(
                step=StepNumber(0), prefill_tokens=tokens, prefill_context=context, elapsed_seconds=0.0
            )
            self._begin(self.machine.prefill_seconds(before, tokens), timing)

    def _begin(self, seconds: float, work: StepTiming) -> None:
        self._gpu_works = True
        timing = StepTiming(
            step=StepNumber(self._step),
            prefill_tokens=work.prefill_tokens,
            prefill_context=work.prefill_context,
            decode_sequences=work.decode_sequences,
            decode_context=work.decode_context,
            elapsed_seconds=seconds,
        )
        self._at(self.now + seconds, lambda: self._ended(timing))

    def _ended(self, timing: StepTiming) -> None:
        self._gpu_works = False
        if timing.prefill_tokens:
            self._passes.popleft()
        self.step(timings=(timing,))
        self._work()


_DECODED = {"decode_sequences": DECODE_SEQUENCES, "decode_context": DECODE_CONTEXT}
