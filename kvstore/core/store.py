"""The store: one door through which all state changes.

`handle(event)` is synchronous and deterministic, does no I/O and reads no clock. It either
raises a refusal before anything has changed, or changes what the event asks for and returns
what follows. How the pieces below it fit together is drawn in ARCHITECTURE.md.
"""

import numpy as np

from kvstore.core.admission import Admission
from kvstore.core.answering import Answering
from kvstore.core.checking import check_completed, check_keys, check_operations, check_tenant
from kvstore.core.committing import Committing
from kvstore.core.config import StoreConfig
from kvstore.core.effects import (
    Answer,
    DiskDelete,
    Done,
    Effects,
    KeepAliveAnswer,
    LookupAnswer,
    Notice,
    PressureChanged,
    SequenceMoved,
    StepAnswer,
    Transfer,
)
from kvstore.core.engines import Engine
from kvstore.core.errors import StepChanged, StepGap, StepMixed, check
from kvstore.core.events import (
    Attach,
    BlocksFound,
    BlocksLost,
    Detach,
    Event,
    FramesReturned,
    KeepAlive,
    Lookup,
    Single,
    Step,
    TetherOpened,
    TethersClosed,
    Tick,
    TransferEnded,
)
from kvstore.core.freeing import Freeing
from kvstore.core.granting import Granting
from kvstore.core.growing import Growing
from kvstore.core.leaving import Leaving
from kvstore.core.links import Links
from kvstore.core.losing import lose_on_disk
from kvstore.core.membership import Membership
from kvstore.core.memory import Memory
from kvstore.core.phases import Phases
from kvstore.core.ports import EvictionPolicy, SwapPolicy
from kvstore.core.prefix import domain_id
from kvstore.core.pressure import PressureGauge
from kvstore.core.reporting import report_usage
from kvstore.core.restoring import restore_blocks
from kvstore.core.sequences import Sequence
from kvstore.core.settling import Settling
from kvstore.core.steps import Steps
from kvstore.core.swaps import Swaps
from kvstore.core.types import RESIDENT, RUNNING, EngineId, Revision, StepNumber, Tier
from kvstore.core.usage import Usage
from kvstore.core.writing import Writing

__all__ = ["Store"]


class Store:
    """All state of the service. Single-threaded: one task owns it."""

    def __init__(self, config: StoreConfig, eviction: EvictionPolicy, swap_policy: SwapPolicy) -> None:
        self.config = config
        self.memory = Memory(config, eviction)
        self.admission = Admission(config, self.memory)
        self.links = Links(config, self.memory, self.admission.is_waiting)
        self._writing = Writing(config, self.memory, self.links)
        self.swaps = Swaps(config, self.memory, self.links, self._sequence_moved)
        self.leaving = Leaving(config, self.memory, self.swaps, swap_policy)
        committing = Committing(config, self.memory)
        settling = Settling(config, self.memory, self.links, self.swaps, committing)
        freeing = Freeing(self.memory, self.swaps, self.admission, self.leaving, settling)
        self.membership = Membership(config, freeing, settling)
        granting = Granting(config, self.memory, self.swaps, self.admission, self.leaving)
        growing = Growing(config, self.memory, self.admission, self.leaving)
        self._answering = Answering(self.memory)
        self._steps = Steps(
            config,
            self.memory,
            committing,
            settling,
            freeing,
            self.leaving,
            growing,
            granting,
            self._answering,
        )
        self._gauge = PressureGauge(config, self.memory, self.admission)
        self.revision = Revision(0)
        # Engines with news, in the order of the news; reset by each event.
        self._woken: dict[EngineId, None] = {}

    def handle(self, event: Event) -> Effects:
        """Applies one event. Raises `KVStoreError`, nothing changed, or `CheckFailed`: a bug."""
        self._woken = {}
        self.memory.room_was_made = False
        answer = self._apply(event)
        if self.memory.room_was_made:
            # Who waits for frames may find some now: no news, but a reason to ask again.
            self._woken.update(self.admission.engines_waiting())
        transfers = tuple(self._start_transfers(event.time))
        deleted, self.memory.deleted = self.memory.deleted, []
        return Effects(
            answer=answer,
            transfers=transfers,
            deletes=(DiskDelete(keys=tuple(deleted)),) if deleted else (),
            wake=tuple(self._woken),
        )

    def _start_transfers(self, time: float) -> list[Transfer]:
        """What can't even be begun fails at once, and makes room for others."""
        started = self.links.start(time)
        while self.links.refused:
            self.swaps.refuse(self.links.take_refused())
            self._woken.update(self.admission.engines_waiting())
            started += self.links.start(time)
        return started

    def usage(self) -> Usage:
        """What there is and who holds it. Changes nothing."""
        return report_usage(self.memory, self.links, self.membership, self._gauge, self.revision)

    def _apply(self, event: Event) -> Answer:
        match event:
            case Step():
                return self._step(event)
            case Single():
                return self._single(event)
            case KeepAlive():
                engine = self.membership.get(event.engine, event.time)
                # A step may have overtaken it: an older number is no news, and no error.
                check_completed(event.completed_step, StepNumber(0), engine.last_step)
                self.membership.keep_alive(engine, event)
                return KeepAliveAnswer(
                    state=engine.state,
                    lease_expire_time=engine.lease_expire_time,
                    revision=self.revision,
                    notices=self._news(engine),
                )
            case Attach():
                return self.membership.attach(event)
            case Lookup():
                return self._lookup(event)
            case Detach():
                self.membership.detach(event.engine)
            case Tick():
                self._tick(event)
            case TetherOpened():
                self.membership.open_tether(event)
            case TethersClosed():
                self.membership.close_tethers(event.engine)
            case TransferEnded():
                self.swaps.end(self.links.end(event.transfer, event.failed, event.late))
                self.memory.room_was_made = True
            case FramesReturned():
                self.links.return_frames(event.transfer, event.positions)
                self.memory.room_was_made = True
            case BlocksLost():
                lose_on_disk(self.memory, self.links, self.swaps, event.keys)
            case BlocksFound():
                self._restore(event)
        return Done()

    # ---------------------------------------------------------------------------- steps

    def _step(self, event: Step) -> StepAnswer:
        engine = self.membership.get(event.engine, event.time)
        last = engine.last_event
        if isinstance(last, Single):
            raise StepMixed(
                "this engine makes unary calls", field="step", value=event.step, remedy="use one style only"
            )
        if isinstance(last, Step) and engine.last_answer and event.step == engine.last_step:
            asked_before = (last.operations, last.completed_step)
            if (event.operations, event.completed_step) != asked_before:
                raise StepChanged(
                    "the step was taken already, with other content",
                    field="step",
                    value=event.step,
                    remedy="retry with the same operations, or use the next number",
                )
            return engine.last_answer
        if event.step != engine.last_step + 1:
            raise StepGap(
                f"the last step was {engine.last_step}",
                field="step",
                value=event.step,
                remedy=f"the next one is {engine.last_step + 1}",
            )
        check_completed(event.completed_step, engine.completed_step, StepNumber(event.step - 1))
        return self._take_step(engine, event, event.step, event.completed_step)

    def _single(self, event: Single) -> StepAnswer:
        """A step of one operation, with no work of the engine in flight."""
        engine = self.membership.get(event.engine, event.time)
        if isinstance(engine.last_event, Step):
            raise StepMixed(
                "this engine takes steps", field="engine", value=event.engine, remedy="use one style only"
            )
        return self._take_step(engine, event, StepNumber(engine.last_step + 1), engine.last_step)

    def _take_step(
        self, engine: Engine, event: Step | Single, step: StepNumber, completed: StepNumber
    ) -> StepAnswer:
        phases = Phases(event.operations if isinstance(event, Step) else (event.operation,))
        check_operations(self.config, engine, phases)
        engine.last_step, engine.last_event = step, event
        results, copies, moved = self._steps.apply(engine, step, completed, phases, event.time)
        for sequence in moved:
            self._sequence_moved(sequence)
        self._watch_pressure(event.time)
        engine.last_answer = StepAnswer(
            step=step,
            results=results,
            copies=copies,
            revision=self.revision,
            notices=self._news(engine),
            lease_expire_time=engine.lease_expire_time,
        )
        # The answer is kept for a retry, so this has been told for good.
        engine.forget_news(self.revision)
        return engine.last_answer

    # -------------------------------------------------------------------------- the rest

    def _lookup(self, event: Lookup) -> LookupAnswer:
        engine = self.membership.get(event.engine, event.time)
        check_tenant(self.config, event.tenant)
        tenant = self.config.tenants[event.tenant or self.config.default_tenant]
        domain = domain_id(engine.namespace, tenant)
        rows = self.memory.prefix.find_prefix(domain, event.block_keys, engine.pending.get(domain, {}))
        if len(rows) < len(event.block_keys):
            check_keys(event.block_keys)  # Those that were found are good ones.
        best = self.memory.best_tier(np.array(rows))
        gpu, cpu, disk = np.bincount(best, minlength=len(Tier)).tolist()
        return LookupAnswer(blocks_cached=len(rows), blocks_by_tier=(gpu, cpu, disk))

    def _tick(self, event: Tick) -> None:
        for engine in self.membership.tick(event.time):
            self._woken[engine.id] = None
        self.links.resume()
        self._writing.look(event.time)
        self._watch_pressure(event.time)

    def _restore(self, event: BlocksFound) -> None:
        check(not self.membership.engines, "blocks were found after an engine had attached")
        restore_blocks(self.memory, event.blocks)

    # ------------------------------------------------------------------------------ news

    def _sequence_moved(self, sequence: Sequence) -> None:
        """A sequence's state has changed: its engine is to be told."""
        engine = self.membership.engines[sequence.engine]
        if sequence.state is RESIDENT and sequence.activity is not RUNNING:
            self.leaving.idle[sequence] = engine
        engine.moved[sequence.id] = self._next_revision()
        self._woken[engine.id] = None

    def _watch_pressure(self, time: float) -> None:
        for tier in self._gauge.changes(time):
            for engine in self.membership.engines.values():
                engine.pressed[tier] = self._next_revision()
                self._woken[engine.id] = None

    def _next_revision(self) -> Revision:
        self.revision = Revision(self.revision + 1)
        return self.revision

    def _news(self, engine: Engine) -> tuple[Notice, ...]:
        """What has happened to the engine's sequences, as things are now, in order."""
        if not engine.moved and not engine.pressed:
            return ()
        notices: list[Notice] = []
        for id, revision in engine.moved.items():
            sequence = engine.sequences[id]
            resident = sequence.state is RESIDENT
            (table,) = self._answering.frames([sequence.rows]) if resident else ((),)
            notices.append(
                SequenceMoved(
                    revision=revision,
                    sequence=id,
                    state=sequence.state,
                    block_table=table,
                    valid_tokens=sequence.filled_tokens,
                )
            )
        for tier, revision in engine.pressed.items():
            notices.append(PressureChanged(revision=revision, tier=tier, pressure=self._gauge.pressure[tier]))
        return tuple(sorted(notices, key=lambda notice: notice.revision))
