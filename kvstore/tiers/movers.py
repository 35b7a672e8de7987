"""The links at work: GPU to CPU and back, CPU to DISK and back, a mover each (mover.py).

The core says what moves and pins both sides; a mover only copies, and tells the end of each transfer exactly
once. Movers don't wait for each other; only background copies down give way to asked-for copies up, which use
the same memory (turns.py). Reads and writes of the disk are put in order by the disk tier.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from kvstore.core.config import WRITES_MAX
from kvstore.core.effects import Transfer
from kvstore.core.errors import CheckFailed
from kvstore.core.types import COPY, LOAD, READ, WRITE, Link, TransferId
from kvstore.tiers.copying import GpuPool, copy_moves, piece_bytes, thread_count
from kvstore.tiers.cuda_pool import CudaPool
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.disk_tickets import Tickets
from kvstore.tiers.link_names import link_name
from kvstore.tiers.mover import TRANSFERS_MAX, Mover
from kvstore.tiers.mover_setup import Ended, MoverSetup, Returned, Tell
from kvstore.tiers.moves import Move, Synced, read_blocks, tell_disk, write_blocks
from kvstore.tiers.pacing import Clock, RealClock, TokenBucket
from kvstore.tiers.pool import HostPool
from kvstore.tiers.rates import LinkRates
from kvstore.tiers.turns import GiveWay, Told

__all__ = ["READ_THREADS", "TRANSFERS_MAX", "WRITE_THREADS", "Ended", "Movers", "Returned"]

# More at once for a device that has several requests in service, and two threads so that it does not run
# dry while one of them looks at what it has got.
READ_PIECE_BYTES = 8 << 20
READ_THREADS = 2
# As many as the core has writes under way: while one is synced and committed, the bytes of others go out.
WRITE_THREADS = WRITES_MAX


class Movers:
    """What the disk is told has no bound of its own: there are never more deletes than blocks on disk, and
    the core tells the rest in batches.

    `rates` learns what pieces take. `in_flight_bytes_max` is what the core starts in a link at the most.
    """

    def __init__(
        self,
        gpu: GpuPool,
        cpu: HostPool | None,
        disk: DiskTier | None,
        ended: Ended,
        *,
        returned: Returned | None = None,
        synced: Synced | None = None,
        rates: LinkRates | None = None,
        in_flight_bytes_max: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._gpu = gpu
        self._by_link: dict[Link, Mover] = {}
        self._buckets: dict[Link, TokenBucket] = {}
        self._ended = ended
        self._returned = returned or (lambda transfer, positions: None)
        self._rates = rates or LinkRates()
        self._in_flight_bytes_max = in_flight_bytes_max
        self._clock = clock or RealClock()
        if cpu is None:
            return
        self._frame_bytes = cpu.frame_bytes
        give_way = GiveWay()
        down, up = copy_moves(gpu, cpu)
        piece, threads = piece_bytes(gpu), thread_count(gpu)
        self._add(COPY, down, piece, threads=threads, gives_way=give_way)
        self._add(LOAD, up, piece, threads=threads, is_given_way=give_way)
        if disk is None:
            return
        # One piece, since a batch is stored whole or not at all, with one sync.
        tell = partial(tell_disk, disk, synced or (lambda sync, failed: None))
        write = partial(write_blocks, cpu, disk)
        self._add(WRITE, write, 0, tell=tell, tickets=disk.tickets, threads=WRITE_THREADS)
        self._add(READ, partial(read_blocks, disk, cpu), READ_PIECE_BYTES, threads=READ_THREADS)

    def start(
        self, transfers: Sequence[Transfer], told: Sequence[Told], raised: Sequence[TransferId] = ()
    ) -> None:
        """Returns at once. What the disk is told goes before transfers, as `Effects` says; `raised` are
        transfers on their way up that somebody waits for by now."""
        for each_raised in raised:
            for link in (READ, LOAD):
                if link in self._by_link:
                    self._by_link[link].raise_to_asked(each_raised)
        for each in told:
            self._mover(WRITE).put_told(each)
        for transfer in transfers:
            self._mover((transfer.source, transfer.target)).put(transfer)

    @property
    def by_link(self) -> Mapping[Link, Mover]:
        """To look at."""
        return self._by_link

    def set_rate(self, link: Link, bytes_per_second: float) -> None:
        """0: no limit. Holds at once, for transfers under way too."""
        self._mover(link)
        self._buckets[link].set_rate(bytes_per_second)

    def alive(self) -> bool:
        """False once a thread has met a bug or has ended by itself, or a device is lost: the service must
        stop then."""
        return self._device_error is None and all(mover.alive() for mover in self._by_link.values())

    @property
    def error(self) -> BaseException | None:
        """Why `alive` is False."""
        errors = (self._device_error, *(mover.error for mover in self._by_link.values()))
        return next((error for error in errors if error is not None), None)

    @property
    def _device_error(self) -> BaseException | None:
        return self._gpu.error if isinstance(self._gpu, CudaPool) else None

    def close(self, timeout: float) -> bool:
        """Lets the movers work off what they have; what isn't begun by then ends as failed.

        False where a thread is still in a call: the pools and the disk must be left open then.
        """
        deadline = self._clock.now() + timeout
        for mover in self._by_link.values():
            mover.put_stop()
        stopped = [mover.join(max(0.0, deadline - self._clock.now())) for mover in self._by_link.values()]
        return all(stopped)

    def _add(
        self,
        link: Link,
        move: Move,
        piece_bytes: int,
        *,
        tell: Tell | None = None,
        tickets: Tickets | None = None,
        threads: int = 1,
        gives_way: GiveWay | None = None,
        is_given_way: GiveWay | None = None,
    ) -> None:
        bucket = self._buckets[link] = TokenBucket(self._clock)
        self._by_link[link] = Mover(
            MoverSetup(
                name=link_name(link),
                move=move,
                frame_bytes=self._frame_bytes,
                piece_bytes=piece_bytes,
                ended=self._ended,
                returned=self._returned,
                bucket=bucket,
                tell=tell,
                tickets=tickets,
                threads=threads,
                in_flight_bytes_max=self._in_flight_bytes_max,
                measured=partial(self._rates.note, link),
                gives_way=gives_way,
                is_given_way=is_given_way,
                clock=self._clock,
            )
        )

    def _mover(self, link: Link) -> Mover:
        mover = self._by_link.get(link)
        if mover is None:
            raise CheckFailed(f"no link from {link[0].name} to {link[1].name}")
        return mover
