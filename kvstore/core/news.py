"""What engines are told, and those who watch; and the revisions that count it.

An engine is told how its sequences stand, not how they came there: so only that they have moved is kept.
Who watches is told each event, as it was. Both know an event by the same revision.
"""

from collections.abc import Mapping

from kvstore.core.answering import Answering
from kvstore.core.engines import Engine
from kvstore.core.memory import Memory
from kvstore.core.notices import (
    BlocksRemoved,
    BlocksStored,
    EngineGone,
    Happening,
    Notice,
    PressureChanged,
    SequenceMoved,
)
from kvstore.core.pressure import PressureGauge
from kvstore.core.sequences import Sequence
from kvstore.core.types import RESIDENT, DomainId, EngineId, Revision, Tier, domain_parts
from kvstore.core.watching import IndexChanges

__all__ = ["News"]


class News:
    def __init__(
        self, memory: Memory, answering: Answering, gauge: PressureGauge, engines: Mapping[EngineId, Engine]
    ) -> None:
        self._memory = memory
        self._answering = answering
        self._gauge = gauge
        self._engines = engines
        self.revision = Revision(0)
        # Engines with news, in the order of the news; reset by each event.
        self.woken: dict[EngineId, None] = {}
        # What those who watch are to be told of the event that is being handled. None: nobody does.
        self._happened: list[Happening] | None = None

    # --------------------------------------------------------------------- what happens

    def sequence_moved(self, engine: Engine, sequence: Sequence) -> None:
        engine.moved[sequence.id] = revision = self._next_revision()
        self.woken[engine.id] = None
        if self._happened is not None:
            self._happened.append(self._moved(engine, sequence, revision))

    def watch_pressure(self, time: float) -> None:
        """Looks whether there is news of it."""
        for tier in self._gauge.changes(time):
            self._pressure_changed(tier)

    def _pressure_changed(self, tier: Tier) -> None:
        revision = self._next_revision()
        for engine in self._engines.values():
            engine.pressed[tier] = revision
            self.woken[engine.id] = None
        if self._happened is not None:
            self._happened.append(self._pressure(tier, revision))

    def engine_gone(self, engine: EngineId) -> None:
        if self._happened is not None:
            self._happened.append(EngineGone(revision=self._next_revision(), engine=engine))

    def _next_revision(self) -> Revision:
        self.revision = Revision(self.revision + 1)
        return self.revision

    # ------------------------------------------------------------------ what engines hear

    def of(self, engine: Engine) -> tuple[Notice, ...]:
        """What has happened to the engine's sequences, as things are now, in order."""
        if not engine.moved and not engine.pressed:
            return ()
        notices: list[Notice] = []
        for id, revision in engine.moved.items():
            notices.append(self._moved(engine, engine.sequences[id], revision))
        for tier, revision in engine.pressed.items():
            notices.append(self._pressure(tier, revision))
        return tuple(sorted(notices, key=lambda notice: notice.revision))

    def _moved(self, engine: Engine, sequence: Sequence, revision: Revision) -> SequenceMoved:
        resident = sequence.state is RESIDENT
        (table,) = self._answering.frames([sequence.rows]) if resident else ((),)
        return SequenceMoved(
            revision=revision,
            engine=engine.id,
            sequence=sequence.id,
            state=sequence.state,
            block_table=table,
            valid_tokens=sequence.filled_tokens,
        )

    def _pressure(self, tier: Tier, revision: Revision) -> PressureChanged:
        return PressureChanged(revision=revision, tier=tier, pressure=self._gauge.pressure[tier])

    # ---------------------------------------------------------------- what watchers hear

    def watch(self, on: bool) -> None:
        if on is (self._happened is not None):
            return
        prefix = self._memory.prefix
        if on and (self.revision or any(True for _ in prefix.entries())):
            # Not all that has happened meanwhile was counted: who saw the last revision has missed some.
            self._next_revision()
        self._happened = [] if on else None
        prefix.changes = IndexChanges(self._memory.blocks) if on else None

    def take_happened(self) -> tuple[Happening, ...]:
        """All that the event has led to, what became of the index last."""
        changes = self._memory.prefix.changes
        if self._happened is None or changes is None:
            return ()
        happened, self._happened = self._happened, []
        for change in changes.take():
            kind = BlocksStored if change.is_stored else BlocksRemoved
            namespace, tenant = domain_parts(DomainId(change.domain))
            happened.append(
                kind(
                    revision=self._next_revision(),
                    tier=change.tier,
                    namespace=namespace,
                    tenant=tenant,
                    keys=tuple(change.keys),
                )
            )
        return tuple(happened)
