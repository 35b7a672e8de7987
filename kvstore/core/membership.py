"""Engines come, prove that they live, and go.

What ends an engine: it detaches; its last tether closes (its processes are gone, so all is
given back at once); or its lease runs out. In that case processes may still map the pools,
so what it held stays in quarantine until its tethers have closed.
"""

from kvstore.core.answers import AttachAnswer
from kvstore.core.calls import Attach, KeepAlive
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine
from kvstore.core.errors import Draining, EngineExpired, FieldInvalid, PoolQuarantined, TooManyEngines
from kvstore.core.events import TetherOpened
from kvstore.core.freeing import Freeing
from kvstore.core.settling import Settling
from kvstore.core.types import EngineId, EngineState

__all__ = ["Membership"]

# A gap between two ticks that shows that the store itself did not run.
PAUSE_SECONDS = 1.0
# Share of the GPU's frames in quarantine from which on nobody new is let in.
QUARANTINE_SHARE_MAX = 0.9


class Membership:
    """All engines by id: attached ones, and expired ones that still hold frames back."""

    def __init__(self, config: StoreConfig, freeing: Freeing, settling: Settling) -> None:
        self._config = config
        self._freeing = freeing
        self._settling = settling
        self.engines: dict[EngineId, Engine] = {}
        # Nobody new is let in: the service is about to be restarted.
        self.is_closed = False
        self._last_tick: float | None = None

    def attach(self, event: Attach) -> AttachAnswer:
        for engine in self.engines.values():
            if engine.request_id == event.request_id and engine.state is EngineState.ATTACHED:
                _check_same(engine, event)
                self._renew(engine, event.time)
                return AttachAnswer(
                    engine=engine.id, lease_expire_time=engine.lease_expire_time, created=False
                )
        self._check_room()
        lease = min(event.lease_seconds, self._config.lease_seconds_max) or self._config.lease_seconds_max
        engine = Engine(
            id=event.engine,
            request_id=event.request_id,
            namespace=event.namespace,
            writer=event.writer,
            build=event.build,
            lease_seconds=lease,
            lease_expire_time=event.time + lease,
        )
        self.engines[engine.id] = engine
        return AttachAnswer(engine=engine.id, lease_expire_time=engine.lease_expire_time, created=True)

    def _check_room(self) -> None:
        if self.is_closed:
            raise Draining(
                "the service is about to be restarted and takes no new engines",
                remedy="attach again when it has been, or have the drain cancelled",
            )
        if len(self.engines) >= self._config.engines_max:
            raise TooManyEngines(
                f"{len(self.engines)} engines hold places already",
                field="engines_max",
                value=self._config.engines_max,
                remedy="detach one, or raise --engines-max",
            )
        held = {engine: self.quarantined_frames(engine) for engine in self.engines.values()}
        if sum(held.values()) >= QUARANTINE_SHARE_MAX * self._config.gpu_frames:
            names = [f"{engine.id} (pids {engine.pids})" for engine, frames in held.items() if frames]
            raise PoolQuarantined(
                "processes of expired engines still map the pool: " + ", ".join(names),
                field="gpu_frames",
                value=self._config.gpu_frames,
                remedy="end these processes",
            )

    def get(self, id: EngineId, time: float) -> Engine:
        """An attached engine, its lease renewed."""
        engine = self.engines.get(id)
        if engine is None or engine.state is not EngineState.ATTACHED:
            raise _expired(id)
        self._renew(engine, time)
        return engine

    def _renew(self, engine: Engine, time: float) -> None:
        engine.lease_expire_time = max(engine.lease_expire_time, time + engine.lease_seconds)

    def keep_alive(self, engine: Engine, event: KeepAlive) -> None:
        engine.forget_news(event.seen_revision)
        if event.completed_step > engine.completed_step:
            engine.completed_step = event.completed_step
            self._settling.settle(engine)

    def detach(self, id: EngineId) -> None:
        """The engine's word that all its steps have completed: nothing has to be waited for."""
        engine = self.engines.get(id)
        if engine is None or engine.state is not EngineState.ATTACHED:
            return
        engine.completed_step = engine.last_step
        self._settling.settle(engine)
        self._freeing.abandon(engine)
        self._freeing.release_quarantine(engine)
        del self.engines[id]

    def open_tether(self, event: TetherOpened) -> None:
        engine = self.engines.get(event.engine)
        if engine is None or engine.state is not EngineState.ATTACHED:
            raise _expired(event.engine)
        engine.pids.append(event.pid)

    def close_tethers(self, id: EngineId) -> bool:
        """Whether that is how the engine ended, and not by a Detach or its lease before."""
        engine = self.engines.pop(id, None)
        if engine is None:
            return False
        if engine.state is EngineState.ATTACHED:
            self._freeing.abandon(engine)
        self._freeing.release_quarantine(engine)
        return engine.state is EngineState.ATTACHED

    def tick(self, time: float) -> list[Engine]:
        """Ends leases that have run out; returns the engines that have expired now."""
        if self._last_tick is not None and time - self._last_tick > PAUSE_SECONDS:
            for engine in self.engines.values():
                engine.lease_expire_time += time - self._last_tick
        self._last_tick = time
        expired = [
            engine
            for engine in self.engines.values()
            if engine.state is EngineState.ATTACHED and engine.lease_expire_time < time
        ]
        for engine in expired:
            engine.state = EngineState.EXPIRED
            self._freeing.abandon(engine)
            if not engine.pids:
                self._freeing.release_quarantine(engine)
                del self.engines[engine.id]
        return expired

    def quarantined_frames(self, engine: Engine) -> int:
        return self._freeing.quarantined_frames(engine)


def _check_same(engine: Engine, event: Attach) -> None:
    """A retry is the same request: what was asked for under the id does not change."""
    if (engine.namespace, engine.build) != (event.namespace, event.build):
        raise FieldInvalid(
            "an engine has attached under this id with another layout or build",
            field="request_id",
            value=event.request_id,
            remedy="choose a new id for each attach; keep it for retries alone",
        )


def _expired(id: EngineId) -> EngineExpired:
    return EngineExpired(
        "no such engine is attached",
        field="engine",
        value=f"engines/{id}",
        remedy="unmap the pools and attach again",
    )
