"""What the service has from its start to its end, whether there is a store yet or not."""

import secrets
from typing import TypeVar

from kvstore.core.answers import Answer
from kvstore.core.errors import EngineExpired
from kvstore.core.events import Event
from kvstore.core.types import NamespaceId
from kvstore.observe.counting import Counts
from kvstore.observe.folder import JournalFolder
from kvstore.server.clock import wall_now
from kvstore.server.config import ServeConfig
from kvstore.server.gpus import Gpus
from kvstore.server.health import Health
from kvstore.server.layout import Layout
from kvstore.server.learning import LearntRates
from kvstore.server.limiting import Limits
from kvstore.server.running import RunningStore
from kvstore.server.waits import Waits
from kvstore.server.watching import Watching
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.names import Names

__all__ = ["Parts"]

AnswerKind = TypeVar("AnswerKind", bound=Answer)


class Parts:
    def __init__(
        self,
        config: ServeConfig,
        disk: DiskTier | None,
        journal: JournalFolder | None,
        gpus: Gpus | None = None,
    ) -> None:
        self.config = config
        self.disk = disk
        self.gpus = gpus
        self.journal = journal
        self.store_epoch = secrets.randbits(64)
        self.start_wall = wall_now()
        self.names = disk.names if disk is not None else Names()
        self.counts = Counts()
        self.health = Health(lambda: self.failure is None)
        self.waits = Waits()
        self.watching = Watching(self.store_epoch)
        self.limits = Limits(config)
        self.learnt = LearntRates(disk, config.links)
        # Made by the first Attach.
        self.running: RunningStore | None = None

    @property
    def failure(self) -> Exception | None:
        """Why the store can't go on, or will never be made."""
        if self.running is not None:
            return self.running.failure
        return self.gpus.error if self.gpus is not None else None

    def ask(self, event: Event, kind: type[AnswerKind]) -> AnswerKind:
        """Of an engine, so there is a store if the engine is one of this service's."""
        if self.running is None:
            raise EngineExpired("no engine has attached to this store yet", remedy="attach again")
        return self.running.ask(event, kind)

    def check_namespace(self, layout: Layout) -> None:
        """Refuses, before anything is changed for it, what `namespace` would refuse."""
        # What is about to be wiped takes its namespaces along.
        if self.disk is None or not self.disk.would_wipe(layout.block_bytes, layout.ranks):
            self.names.check_namespace(
                layout.fingerprint, layout.block_bytes, layout.block_tokens, layout.ranks
            )

    def namespace(self, layout: Layout) -> NamespaceId:
        return self.names.namespace_id(
            layout.fingerprint, layout.block_bytes, layout.block_tokens, layout.ranks, layout.description
        )
