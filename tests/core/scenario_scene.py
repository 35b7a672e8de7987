"""Where a scenario plays: a World, its engines, and what things are called there.

The invariants of the store hold after every event (`World.handle`), and no work of an engine may read a byte
that is not its own (`Shadow`). Those failures stop a scenario; they can't be written down as expected.
"""

import random
from dataclasses import dataclass, field, replace

from kvstore.core.effects import Effects
from kvstore.core.errors import KVStoreError
from kvstore.core.events import BlocksFound, Event
from kvstore.core.invariants import check_invariants
from kvstore.core.operations import Operation
from kvstore.core.types import ForgetId
from tests.core.scenario_engine import Engine
from tests.core.scenario_telling import Telling
from tests.core.scenario_texts import Names
from tests.core.scenario_words import Line, ScenarioError
from tests.core.world import World, make_store

__all__ = ["Config", "Scene"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Frames by tier; tokens up to which AUTO drops instead of swapping; blocks a transfer at most."""

    gpu: int
    cpu: int
    disk: int
    drop: int
    batch: int
    # Blocks that a tenant may have retained, and blocks that a Forget takes out at once.
    retain: int
    lot: int

    @classmethod
    def parse(cls, line: Line) -> "Config":
        if line.word("config") != "config" or line.words:
            raise ScenarioError("the first line behind the text is `config, gpu 8, cpu 8, disk 16`")
        config = cls(
            gpu=line.number("gpu", 16),
            cpu=line.number("cpu", 0),
            disk=line.number("disk", 0),
            drop=line.number("drop", 0),
            batch=line.number("batch", 32),
            retain=line.number("retain", 0),
            lot=line.number("lot", 512),
        )
        line.done()
        return config


class _Moment(random.Random):
    """Bytes of every transfer move when it starts, or when it ends."""

    def __init__(self, *, early: bool) -> None:
        super().__init__(0)
        self._early = early

    def random(self) -> float:
        return 0.0 if self._early else 0.99


@dataclass(slots=True)
class Scene:
    config: Config
    early: bool
    engines: dict[int, Engine] = field(default_factory=dict)
    telling: Telling = field(default_factory=lambda: Telling(Names()))
    # The last thing that was to be forgotten.
    forget: ForgetId | None = None
    world: World = field(init=False)

    def __post_init__(self) -> None:
        self.world = self._new_world()

    @property
    def names(self) -> Names:
        return self.telling.names

    def handle(
        self, event: Event, operations: tuple[Operation, ...] = (), seen: int = 0
    ) -> tuple[Effects, list[str]]:
        """The effects and how they read; those of a refusal are empty."""
        try:
            effects = self.world.handle(event)
        except KVStoreError as refusal:
            check_invariants(self.world.store)
            return Effects(), [self.telling.refusal(refusal)]
        return effects, self.telling.effects(effects, operations, seen)

    def restart(self, disk_frames: int) -> list[str]:
        """The service begins anew with what lies on disk, in the order in which it was written."""
        self.config = replace(self.config, disk=disk_frames)
        disk = self.world.shadow.disk
        self.world = self._new_world()
        self.world.shadow.disk = disk
        self.telling.forget_places()
        found = BlocksFound(time=self.world.time, blocks=disk.find(), sessions=disk.sessions())
        return self.handle(found)[1]

    def _new_world(self) -> World:
        config = self.config
        store = make_store(
            gpu_frames=config.gpu,
            cpu_frames=config.cpu,
            disk_frames=config.disk,
            drop_tokens_max=config.drop,
            transfer_blocks_max=config.batch,
            retained_blocks_max=config.retain,
            forget_lot_blocks=config.lot,
        )
        world = World(store)
        world.random = _Moment(early=self.early)
        return world
