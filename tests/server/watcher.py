"""One who watches, and knows the index by what is told."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1.kvstore_pb2_grpc import KVStoreStub
from tests.server.harness import (
    Service,
    key,
)


class Watcher:
    """The index by tier, and all that was told, as one has it who applies what comes."""

    def __init__(self, stub: KVStoreStub, **request: object) -> None:
        self.call = stub.WatchEvents(pb.WatchEventsRequest(**request), timeout=60)  # type: ignore[arg-type]
        # It has begun when the first batch is there.
        self.first = next(self.call)
        self.revision = self.first.revision
        self.events: list[pb.Event] = []
        self.index: dict[int, set[bytes]] = {pb.TIER_GPU: set(), pb.TIER_CPU: set(), pb.TIER_DISK: set()}

    def take(self) -> None:
        batch = next(self.call)
        for event in batch.events:
            self.revision += 1
            assert event.revision == self.revision, "no gap"
            self.events.append(event)
            self.index[event.blocks_stored.tier or 1].update(event.blocks_stored.block_keys)
            self.index[event.blocks_removed.tier or 1].difference_update(event.blocks_removed.block_keys)
        assert batch.revision == self.revision

    def take_until(self, good: Callable[["Watcher"], bool]) -> None:
        while not good(self):
            self.take()

    def kinds(self) -> list[str | None]:
        return [event.WhichOneof("kind") for event in self.events]


@contextmanager
def watching_all(service: Service, **request: object) -> Iterator[Watcher]:
    with service.stub() as stub:
        watcher = Watcher(stub, **request)
        try:
            yield watcher
        finally:
            watcher.call.cancel()


def keys(numbers: range) -> set[bytes]:
    return {key(number) for number in numbers}
