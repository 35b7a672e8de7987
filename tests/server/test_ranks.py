"""Two ranks of one engine, a process each: what one frame number means to both."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kvstore.client import Client, Layout, ServiceLost, operations
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import BLOCK_BYTES, BLOCK_TOKENS, Service, key, tier, until
from tests.server.rank_worker import RankWorker, rank_content

MakeService = Callable[..., Service]

RANKS = 2
LAYOUT = Layout(block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, ranks=RANKS, fingerprint=b"f" * 32)
BLOCKS = list(range(5))
KEYS = [key(number) for number in BLOCKS]
# One token more: the block of the last token is never found.
TOKENS = len(BLOCKS) * BLOCK_TOKENS + 1
JUNK = 999


class Front:
    """An engine's scheduler. It maps nothing itself."""

    def __init__(self, service: Service, lease_seconds: float = 10.0) -> None:
        self.client = Client(str(service.socket))
        self._lease_seconds = lease_seconds
        self.workers: list[RankWorker] = []

    def attach(self) -> None:
        self.client.attach(LAYOUT, lease_seconds=self._lease_seconds, map_ranks=[])
        for rank, worker in enumerate(self.workers):
            worker.map(self.client.share_rank(rank))
            assert worker.rank == rank

    def allocate(self, sequence: int, *, session: str = "") -> list[int]:
        """Frames for the whole table; the blocks of it that are loaded may not be there yet."""
        operation = operations.allocate(sequence, TOKENS, block_keys=KEYS, session=session)
        [result] = self.client.step([operation]).results
        assert result.allocate.outcome == pb.OUTCOME_OK
        return list(self.client.tables.table(sequence))

    def fill(self, sequence: int, *, session: str = "") -> list[int]:
        """Computes the blocks on both ranks and commits them; returns their frames."""
        table = self.allocate(sequence, session=session)[: len(BLOCKS)]
        for worker in self.workers:
            worker.write(table, BLOCKS)
        self.client.step([operations.commit(sequence, 0, KEYS)])
        self.client.step([])
        return table

    def scribble(self, sequence: int) -> None:
        """Takes all frames that there are, leaves something in each of them, and gives them back."""
        count = self.client.frame_count
        [result] = self.client.step([operations.allocate(sequence, count * BLOCK_TOKENS)]).results
        assert result.allocate.outcome == pb.OUTCOME_OK
        frames = list(result.allocate.block_table)
        assert sorted(frames) == list(range(count))
        for worker in self.workers:
            worker.write(frames, [JUNK] * count)
        self.client.step([operations.free([sequence], pb.FreeRequest.DISCARD)])
        self.client.step([])

    def wait_state(self, sequence: int, state: pb.Sequence.State.ValueType) -> None:
        def look() -> pb.Sequence.State.ValueType:
            if self.client.tables.state(sequence) != state:
                self.client.wait_events(1.0)
            return self.client.tables.state(sequence)

        until(look, lambda found: found == state)


@contextmanager
def engine(service: Service, *, lease_seconds: float = 10.0) -> Iterator[Front]:
    """The scheduler here, and a worker process for each rank."""
    with ExitStack() as stack:
        front = Front(service, lease_seconds)
        stack.callback(front.client.close)
        front.workers = [stack.enter_context(RankWorker()) for _ in range(RANKS)]
        front.attach()
        yield front


def store_on_disk(front: Front) -> None:
    """Computes the blocks as the turn of a chat, and waits until they are on disk."""
    front.fill(1, session="chat")
    front.client.step([operations.free([1], pb.FreeRequest.SESSION)])
    front.client.step([])
    until(
        lambda: tier(front.client.operator.usage(), pb.TIER_DISK).blocks_moved_in, lambda n: n == len(BLOCKS)
    )


def disk_flags(folder: Path) -> tuple[str, ...]:
    return "--disk", str(folder / "disk"), "--disk-bytes", "16MiB"


def test_both_ranks_find_their_own_bytes_after_each_journey(make_service: MakeService, folder: Path) -> None:
    service = make_service(*disk_flags(folder)).start()
    with engine(service) as front:
        # To the CPU tier and back: to any frames, that others have used meanwhile.
        table = front.fill(1)
        assert all(worker.holds(table, BLOCKS) for worker in front.workers)
        front.client.step([operations.swap_out(1, len(BLOCKS) * BLOCK_TOKENS, pb.SwapRequest.KEEP)])
        front.wait_state(1, pb.Sequence.SWAPPED)
        front.scribble(2)
        front.client.step([operations.swap_in(1)])
        assert front.client.wait_resident(1, 20) == len(BLOCKS) * BLOCK_TOKENS
        table = front.client.tables.table(1)[: len(BLOCKS)]
        assert all(worker.holds(table, BLOCKS) for worker in front.workers)
        front.client.step([operations.free([1], pb.FreeRequest.DISCARD)])
        front.client.step([])

        # To disk, and back in the next life of the service, whose pools both map anew.
        store_on_disk(front)
        assert service.end() == 0
        for worker in front.workers:
            worker.wait_lost()
        with pytest.raises(ServiceLost):
            front.client.step([])
        service.start()
        front.attach()
        # Junk in every frame: what the workers find in them afterwards came from disk.
        front.scribble(2)
        front.allocate(3)
        assert front.client.wait_resident(3, 20) == len(BLOCKS) * BLOCK_TOKENS
        table = front.client.tables.table(3)[: len(BLOCKS)]
        assert all(worker.holds(table, BLOCKS) for worker in front.workers)


@pytest.mark.parametrize("bad_rank", range(RANKS))
def test_a_block_that_is_wrong_on_one_rank_is_good_on_none(
    make_service: MakeService, folder: Path, bad_rank: int
) -> None:
    service = make_service(*disk_flags(folder)).start()
    with engine(service) as front:
        store_on_disk(front)
    assert service.end() == 0
    data = folder / "disk" / "segment-000000"
    raw = bytearray(data.read_bytes())
    raw[raw.index(rank_content(BLOCKS[2], bad_rank)) + 100] ^= 1
    data.write_bytes(raw)
    service.start()
    with engine(service) as front:
        front.allocate(1)
        assert front.client.wait_resident(1, 20) == 2 * BLOCK_TOKENS
        table = front.client.tables.table(1)
        assert all(worker.holds(table[:2], BLOCKS[:2]) for worker in front.workers)
        # Found by nobody any more, on either rank: computed again, both have it again.
        assert front.client.lookup(KEYS).blocks_cached == 2
        for worker in front.workers:
            worker.write(table[2 : len(BLOCKS)], BLOCKS[2:])
        front.client.step([operations.commit(1, 2, KEYS[2:])])
        front.client.step([])
        assert front.client.lookup(KEYS).blocks_cached == len(BLOCKS)
        table = front.allocate(2)[: len(BLOCKS)]
        assert all(worker.holds(table, BLOCKS) for worker in front.workers)


def test_when_one_rank_dies_the_other_keeps_its_frames_until_it_has_ended_too(
    make_service: MakeService,
) -> None:
    service = make_service().start()
    with engine(service) as other, engine(service, lease_seconds=0.5) as front:
        front.fill(1)
        [result] = front.client.step([operations.allocate(2, 2 * BLOCK_TOKENS)]).results
        held = [*front.client.tables.table(1), *result.allocate.block_table]
        # In the frame of the last token too, and in those of blocks that nobody has published.
        numbers = list(range(len(held)))
        for worker in front.workers:
            worker.write(held, numbers)
        front.workers[1].kill()
        # The engine is what lives of it: it goes on until it gives up, and then its lease ends.
        front.client.step([])
        front.client.close()

        def engines() -> list[pb.EngineUsage]:
            return [
                use for use in other.client.operator.usage().engines if use.engine.name != other.client.engine
            ]

        [left] = until(engines, lambda found: found[0].engine.state == pb.Engine.EXPIRED)
        assert left.frames_quarantined == len(held)
        assert front.workers[0].pid in left.peer_pids
        # All the others can be had, none of those.
        free = other.client.frame_count - len(held)
        operation = operations.allocate(7, free * BLOCK_TOKENS)
        [result] = other.client.step([operation]).results
        assert result.allocate.outcome == pb.OUTCOME_OK
        taken = list(result.allocate.block_table)
        assert not set(taken) & set(held)
        for worker in other.workers:
            worker.write(taken, [JUNK] * free)
        more = operations.allocate(8, BLOCK_TOKENS)
        [result] = other.client.step([more]).results
        assert result.allocate.outcome == pb.OUTCOME_LATER
        survivor = front.workers[0]
        assert survivor.holds(held, numbers)

        survivor.kill()
        until(engines, lambda found: not found)
        gpu = tier(other.client.operator.usage(), pb.TIER_GPU)
        assert (gpu.frames_quarantined, gpu.frames_cached) == (0, len(BLOCKS))
        # What it had published before is there, on both ranks.
        other.client.step([operations.free([7])])
        [result] = other.client.step([operations.allocate(9, TOKENS, block_keys=KEYS)]).results
        assert result.allocate.cached_tokens == len(BLOCKS) * BLOCK_TOKENS
        found = other.client.tables.table(9)[: len(BLOCKS)]
        assert all(worker.holds(found, BLOCKS) for worker in other.workers)
        [result] = other.client.step([more]).results
        assert result.allocate.outcome == pb.OUTCOME_OK


def test_an_engine_ends_with_its_last_rank(make_service: MakeService) -> None:
    """Its scheduler lives and renews the lease, but there is nobody left who could read a frame."""
    service = make_service().start()
    with engine(service, lease_seconds=60) as front:
        front.allocate(1)
        for worker in front.workers:
            worker.kill()
        usage = until(front.client.operator.usage, lambda usage: not usage.engines)
        gpu = tier(usage, pb.TIER_GPU)
        assert gpu.frames_free == gpu.frames_total
        with pytest.raises(ServiceLost):
            front.client.step([])
