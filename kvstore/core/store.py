"""The store: one door through which all state changes.

`handle(event)` is synchronous and deterministic, does no I/O and reads no clock. It either
raises a refusal before anything has changed, or changes what the event asks for and returns
what follows. How the pieces below it fit together is drawn in ARCHITECTURE.md.
"""

import numpy as np

from kvstore.core.admission import Admission
from kvstore.core.answering import Answering
from kvstore.core.chains import Chains
from kvstore.core.checking import check_completed, check_keys, check_operations, check_tenant
from kvstore.core.committing import Committing
from kvstore.core.config import StoreConfig
from kvstore.core.draining import Draining
from kvstore.core.effects import (
    Admitted,
    Answer,
    BlocksUsed,
    DiskDelete,
    DiskNote,
    DiskSync,
    Done,
    DrainAnswer,
    Effects,
    KeepAliveAnswer,
    LookupAnswer,
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
    DiskSynced,
    Drain,
    Event,
    Forget,
    ForgetOn,
    FramesReturned,
    GetSequence,
    KeepAlive,
    Lookup,
    Prefetch,
    Retain,
    SetLimits,
    Single,
    Step,
    TetherOpened,
    TethersClosed,
    Tick,
    TransferEnded,
    Watch,
)
from kvstore.core.forgetting import Forgetting
from kvstore.core.freeing import Freeing
from kvstore.core.granting import Granting
from kvstore.core.growing import Growing
from kvstore.core.leaving import Leaving
from kvstore.core.links import Links
from kvstore.core.losing import lose_on_disk
from kvstore.core.membership import Membership
from kvstore.core.memory import Memory
from kvstore.core.news import News
from kvstore.core.phases import Phases
from kvstore.core.ports import EvictionPolicy, SwapPolicy
from kvstore.core.prefix import domain_id
from kvstore.core.pressure import PressureGauge
from kvstore.core.reporting import report_sequence, report_sequences, report_usage
from kvstore.core.restoring import restore_blocks
from kvstore.core.sequences import Sequence
from kvstore.core.sessions import Sessions
from kvstore.core.settling import Settling
from kvstore.core.steps import Steps
from kvstore.core.swaps import Swaps
from kvstore.core.types import RESIDENT, RUNNING, Revision, StepNumber, StoredKey, Tier
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
        self.sessions = Sessions(config, self.memory)
        settling = Settling(config, self.memory, self.links, self.swaps, committing, self.sessions)
        freeing = Freeing(self.memory, self.swaps, self.admission, self.leaving, settling)
        self.membership = Membership(config, freeing, settling)
        self._draining = Draining(config, self.memory, self.links)
        engines = self.membership.engines.values
        self.forgetting = Forgetting(config, self.memory, self.swaps, self.sessions, engines)
        self._chains = Chains(config, self.memory, self.links, self.sessions)
        self._granting = Granting(config, self.memory, self.swaps, self.admission, self.leaving)
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
            self._granting,
            self._answering,
        )
        self._gauge = PressureGauge(self.memory, self.admission)
        self._news = News(self.memory, self._answering, self._gauge, self.membership.engines)
        # What the disk is to be told with the next effects.
        self._used: tuple[StoredKey, ...] = ()

    @property
    def revision(self) -> Revision:
        """Of the last event."""
        return self._news.revision

    def handle(self, event: Event) -> Effects:
        """Applies one event. Raises `KVStoreError`, nothing changed, or `CheckFailed`: a bug."""
        news = self._news
        news.woken = {}
        self.memory.room_was_made = False
        self.memory.retained.now = event.time
        answer = self._apply(event)
        if self.memory.room_was_made:
            # Who waits for frames may find some now: no news, but a reason to ask again.
            news.woken.update(self.admission.engines_waiting())
        transfers = tuple(self._start_transfers(event.time))
        deleted, self.memory.deleted = self.memory.deleted, []
        admitted: tuple[Admitted, ...] = ()
        if self._granting.admitted:
            admitted = tuple(self._granting.admitted)
            self._granting.admitted.clear()
        return Effects(
            answer=answer,
            transfers=transfers,
            deletes=(DiskDelete(keys=tuple(deleted)),) if deleted else (),
            wake=tuple(news.woken),
            admitted=admitted,
            happened=news.take_happened(),
            notes=self._notes() if self._used or self.sessions.has_notes else (),
            syncs=self._syncs() if self.forgetting.syncs else (),
        )

    def _syncs(self) -> tuple[DiskSync, ...]:
        syncs, self.forgetting.syncs = self.forgetting.syncs, []
        return tuple(syncs)

    def _notes(self) -> tuple[DiskNote, ...]:
        used, self._used = self._used, ()
        uses = (BlocksUsed(keys=used),) if used else ()
        return (*self.sessions.notes(), *uses)

    def _start_transfers(self, time: float) -> list[Transfer]:
        """What can't even be begun fails at once, and makes room for others."""
        started = self.links.start(time)
        while self.links.refused:
            self.swaps.refuse(self.links.take_refused())
            self._news.woken.update(self.admission.engines_waiting())
            started += self.links.start(time)
        return started

    def usage(self) -> Usage:
        """What there is and who holds it. Changes nothing."""
        sequences = report_sequences(self.membership, self.swaps, self.leaving, self.admission)
        return report_usage(
            self.memory,
            self.links,
            self.membership,
            self._gauge,
            self.leaving,
            self.sessions,
            sequences,
            self.revision,
        )

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
                    notices=self._news.of(engine),
                )
            case Attach():
                return self.membership.attach(event)
            case Lookup():
                return self._lookup(event)
            case GetSequence():
                engine = self.membership.get(event.engine, event.time)
                return report_sequence(self.config, engine, event.sequence, self._answering)
            case Drain():
                return self._drain(event)
            case Watch():
                self._news.watch(event.on)
            case Prefetch():
                return self._chains.prefetch(self.membership.get(event.engine, event.time), event)
            case Retain():
                return self._chains.retain(self.membership.get(event.engine, event.time), event)
            case Forget():
                return self.forgetting.begin(event)
            case ForgetOn():
                return self.forgetting.go_on(event.forget, event.time)
            case Detach():
                self.membership.detach(event.engine)
            case Tick():
                self._tick(event)
            case TetherOpened():
                self.membership.open_tether(event)
            case TethersClosed():
                if self.membership.close_tethers(event.engine):
                    self._news.engine_gone(event.engine)
            case TransferEnded():
                self.swaps.end(self.links.end(event.transfer, event.failed, event.late))
                self.memory.room_was_made = True
                if not self.forgetting.is_idle:
                    self.forgetting.transfer_ended(event.time)
            case DiskSynced():
                self.forgetting.synced(event)
            case FramesReturned():
                self.links.return_frames(event.transfer, event.positions)
                self.memory.room_was_made = True
            case BlocksLost():
                lose_on_disk(self.memory, self.links, self.swaps, event.keys)
            case BlocksFound():
                self._restore(event)
            case SetLimits():
                self.memory.watermarks.set(event.watermarks)
                self._gauge.look_again()
                self._watch_pressure(event.time)
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
            notices=self._news.of(engine),
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
            self._news.woken[engine.id] = None
            self._news.engine_gone(engine.id)
        self.links.resume()
        if self.memory.retained.has_any:
            self.memory.retained.expire()
        if not self.forgetting.is_idle:
            self.forgetting.tick(event.time)
        if self.config.disk_frames:
            used = self.memory.recency.next(event.time).tolist()
            self._used = tuple([self.memory.stored_key(row) for row in used])
        self._writing.look(event.time)
        self._watch_pressure(event.time)

    def _restore(self, event: BlocksFound) -> None:
        check(not self.membership.engines, "blocks were found after an engine had attached")
        restore_blocks(self.memory, event.blocks)
        self.sessions.restore(event.sessions)

    def _drain(self, event: Drain) -> DrainAnswer:
        """What runs goes on."""
        self.membership.is_closed = self.admission.is_closed = event.on
        if event.on:
            self._draining.write_down()
        return self._draining.report()

    # ------------------------------------------------------------------------------ news

    def _sequence_moved(self, sequence: Sequence) -> None:
        """A sequence's state has changed: its engine is to be told."""
        engine = self.membership.engines[sequence.engine]
        if sequence.state is RESIDENT and sequence.activity is not RUNNING:
            self.leaving.idle[sequence] = engine
        self._news.sequence_moved(engine, sequence)

    def _watch_pressure(self, time: float) -> None:
        for tier in self._gauge.changes(time):
            self._news.pressure_changed(tier)
