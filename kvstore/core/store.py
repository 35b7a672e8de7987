"""The store: one door through which all state changes.

`handle(event)` is synchronous and deterministic, does no I/O and reads no clock. It either
raises a refusal before anything has changed, or changes what the event asks for and returns
what follows. How the pieces below it fit together is drawn in ARCHITECTURE.md.
"""

from kvstore.core.admission import Admission
from kvstore.core.answering import Answering
from kvstore.core.answers import Answer, Done, DrainAnswer, KeepAliveAnswer
from kvstore.core.asking import Asking
from kvstore.core.bounds import check_completed, check_costs
from kvstore.core.calls import (
    Attach,
    Detach,
    Drain,
    Forget,
    ForgetOn,
    GetSequence,
    KeepAlive,
    Lookup,
    Prefetch,
    Retain,
    SetCosts,
    SetLimits,
    Single,
    Step,
    Watch,
)
from kvstore.core.chains import Chains
from kvstore.core.committing import Committing
from kvstore.core.config import StoreConfig
from kvstore.core.draining import Draining
from kvstore.core.effects import Effects
from kvstore.core.errors import check
from kvstore.core.events import (
    BlocksFound,
    BlocksLost,
    DiskSynced,
    Event,
    FramesReturned,
    TetherOpened,
    TethersClosed,
    Tick,
    TransferEnded,
)
from kvstore.core.exactly_once import ExactlyOnce
from kvstore.core.explaining import Explaining
from kvstore.core.forgetting import Forgetting
from kvstore.core.freeing import Freeing
from kvstore.core.granting import Granting
from kvstore.core.growing import Growing
from kvstore.core.judging import Judging
from kvstore.core.later import Later
from kvstore.core.leaving import Leaving
from kvstore.core.links import Links
from kvstore.core.losing import lose_on_disk
from kvstore.core.membership import Membership
from kvstore.core.memory import Memory
from kvstore.core.news import News
from kvstore.core.outgoing import Outgoing
from kvstore.core.ports import AdmissionPolicy, EvictionPolicy, SwapPolicy
from kvstore.core.pressure import PressureGauge
from kvstore.core.reporting import report_sequence, report_sequences, report_tenants, report_usage
from kvstore.core.restoring import restore_blocks
from kvstore.core.returning import Returning
from kvstore.core.sequences import Sequence
from kvstore.core.sessions import Sessions
from kvstore.core.settling import Settling
from kvstore.core.steps import Steps
from kvstore.core.swaps import Swaps
from kvstore.core.types import GPU, RESIDENT, RUNNING, Pressure, Revision, StepNumber
from kvstore.core.usage import Usage
from kvstore.core.writing import Writing

__all__ = ["Store"]


class Store:
    """All state of the service. Single-threaded: one task owns it."""

    def __init__(
        self,
        config: StoreConfig,
        eviction: EvictionPolicy,
        swap_policy: SwapPolicy,
        admission: AdmissionPolicy | None = None,
    ) -> None:
        """`admission` None: what no session owns is copied to the CPU tier, and never to disk."""
        self.config = config
        self.memory = Memory(config, eviction, admission)
        self.admission = Admission(config, self.memory)
        self.links = Links(config, self.memory, self.admission.is_waiting)
        self._judging = Judging(config, self.memory, self.links, admission)
        self._writing = Writing(config, self.memory, self.links)
        self.swaps = Swaps(config, self.memory, self.links, self._sequence_moved)
        self.swap_policy = swap_policy
        self.leaving = Leaving(config, self.memory, self.swaps, self.links, swap_policy)
        self._returning = Returning(config, self.memory, self.links, swap_policy)
        committing = Committing(config, self.memory)
        self.sessions = Sessions(config, self.memory)
        self._settling = settling = Settling(
            config,
            self.memory,
            self.links,
            self.swaps,
            committing,
            self.sessions,
            self._judging,
            Later(config, self.memory, lambda: self.membership.engines.values()),
            admission,
        )
        freeing = Freeing(self.memory, self.swaps, self.admission, self.leaving, settling)
        self.membership = Membership(config, freeing, settling)
        self._draining = Draining(config, self.memory, self.links)
        engines = self.membership.engines.values
        self.forgetting = Forgetting(config, self.memory, self.swaps, self.sessions, engines)
        self._chains = Chains(config, self.memory, self.links, self.sessions)
        granting = Granting(config, self.memory, self.swaps, self.admission, self.leaving, self._returning)
        growing = Growing(config, self.memory, self.admission, self.leaving)
        self._answering = Answering(self.memory)
        asking = Asking(
            config,
            self.memory,
            settling,
            self.leaving,
            self.admission,
            growing,
            granting,
            self._answering,
        )
        steps = Steps(config, self.memory, committing, settling, freeing, self.leaving, asking)
        # What was decided lately, for who asks why.
        self.explaining = Explaining(
            self.memory.decisions, self.membership, self.sessions, self.memory.shares
        )
        self.gauge = PressureGauge(self.memory, self.admission)
        self._news = News(self.memory, self._answering, self.gauge, self.membership.engines)
        self._once = ExactlyOnce(
            config, self.membership, steps, self._news, swap_policy, self._sequence_moved
        )
        self._outgoing = Outgoing(
            self.memory,
            self.admission,
            self.links,
            self.swaps,
            granting,
            self.sessions,
            self.forgetting,
            self._news,
        )

    @property
    def revision(self) -> Revision:
        """Of the last event."""
        return self._news.revision

    def handle(self, event: Event) -> Effects:
        """Applies one event. Raises `KVStoreError`, nothing changed, or `CheckFailed`: a bug."""
        self._news.woken = {}
        self.memory.room_was_made = False
        self.memory.now = event.time
        effects = self._outgoing.take(self._apply(event), event.time)
        if self.memory.regret.evicted:
            self.memory.regret.settle()
        return effects

    def usage(self) -> Usage:
        """What there is and who holds it. Changes nothing."""
        sequences = report_sequences(
            self.membership, self.swaps, self.leaving, self._returning, self.admission
        )
        return report_usage(
            self.memory,
            self.links,
            self.membership,
            self.gauge,
            self.leaving,
            self.sessions,
            sequences,
            report_tenants(self.memory, self.admission),
            self.revision,
        )

    def _apply(self, event: Event) -> Answer:
        match event:
            case Step():
                return self._once.take(event)
            case Single():
                return self._once.take_single(event)
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
                return self._chains.lookup(self.membership.get(event.engine, event.time), event)
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
                moved = self.links.end(event.transfer, event.failed, event.late)
                # Frames of the GPU that it has pinned, or whose blocks have a copy below now.
                self.memory.room_was_made |= GPU in moved.link
                self.swaps.end(moved)
                if not self.forgetting.is_idle:
                    self.forgetting.transfer_ended(event.time)
            case DiskSynced():
                self.forgetting.synced(event)
            case FramesReturned():
                self.links.return_frames(event.transfer, event.positions)
            case BlocksLost():
                lose_on_disk(self.memory, self.links, self.swaps, event.keys)
            case BlocksFound():
                self._restore(event)
            case SetCosts():
                check_costs(event)
                self.swap_policy.set_costs(event.block_bytes, event.links)
            case SetLimits():
                self.memory.watermarks.set(event.watermarks)
                self.gauge.look_again()
                self._news.watch_pressure(event.time)
        return Done()

    def _tick(self, event: Tick) -> None:
        for engine in self.membership.tick(event.time):
            self._news.woken[engine.id] = None
            self._news.engine_gone(engine.id)
        self.links.resume()
        if self.memory.retained.has_any:
            self.memory.retained.expire(event.time)
        if not self.forgetting.is_idle:
            self.forgetting.tick(event.time)
        if self.config.disk_frames:
            used = self.memory.recency.next(event.time)
            if used.size:
                self._outgoing.used = tuple(self.memory.replicas.stored_keys(used))
        self._settling.keep_put_off()
        self._judging.look(event.time)
        self._writing.look(event.time)
        self.leaving.pressed.set(self.gauge.pressure[GPU] is not Pressure.LOW, event.time)
        self._news.watch_pressure(event.time)

    def _restore(self, event: BlocksFound) -> None:
        check(not self.membership.engines, "blocks were found after an engine had attached")
        restore_blocks(self.memory, event.blocks)
        self.sessions.restore(event.sessions)

    def _drain(self, event: Drain) -> DrainAnswer:
        """What runs goes on."""
        self.membership.is_closed = self.admission.is_closed = self._chains.is_closed = event.on
        if event.on:
            self._draining.write_down()
        else:
            self._draining.end()
        return self._draining.report()

    def _sequence_moved(self, sequence: Sequence) -> None:
        """A sequence's state has changed: its engine is to be told."""
        engine = self.membership.engines[sequence.engine]
        if sequence.state is RESIDENT and sequence.activity is not RUNNING:
            self.leaving.idle[sequence] = engine
        self._news.sequence_moved(engine, sequence)
