"""The client: what an inference engine uses of the service; the calls of operators are at `client.operator`.

    with Client() as client:
        client.attach(Layout(block_tokens=16, block_bytes=..., ranks=1, fingerprint=...))
        frames = client.pools[0].frames
        response = client.step([operations.allocate(1, 100, block_keys=chain.keys)])
        valid_tokens = client.wait_resident(1, seconds=10)

One thread uses a client; the client has one more of its own, which keeps the lease. Calls raise ServiceLost
when the service is gone, at the latest two seconds after its death, and pools are unmapped then. Memory
itself goes with the last array made from it: the engine drops its views and tensors, and attaches again. It
can also go on without.
"""

import contextlib
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from kvstore.client.address import default_address, to_address
from kvstore.client.attaching import Layout, ask_attach, check_ranks, give_up
from kvstore.client.attachment import Attachment, PendingStep
from kvstore.client.calls import Service
from kvstore.client.errors import ClientError, ServiceLost
from kvstore.client.mapping import MappedPool, map_pools, share_rank
from kvstore.client.operations import duration
from kvstore.client.operator_calls import OperatorCalls
from kvstore.client.tables import BlockTables
from kvstore.cuda.driver import Driver
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Client"]


class Client:
    def __init__(
        self, address: str = "", *, deadline_seconds: float = 2.0, cuda: Driver | None = None
    ) -> None:
        """Connects to nothing yet. `address`: the service's socket, a path or `unix:PATH`; empty: this
        user's default. The deadline bounds one try. `cuda`: by what a pool on a GPU is mapped; this
        machine's driver by default, looked for only where there is such a pool."""
        self._cuda = cuda
        self._service = Service(to_address(address or default_address()), deadline_seconds)
        self.operator = OperatorCalls(self._service)
        self._attachment: Attachment | None = None
        self._attached_with = pb.AttachResponse()

    def attach(
        self,
        layout: Layout,
        *,
        build: str = "",
        lease_seconds: float = 10.0,
        map_ranks: Sequence[int] | None = None,
    ) -> None:
        """Becomes an engine of the service, and maps the pools of these ranks (None: of all).

        Those of other ranks are for worker processes of this engine, see `share_rank`.
        """
        self._service.check_process()
        if self._attachment is not None:
            if not self._attachment.is_lost:
                raise ClientError(f"attached already, as {self.engine}: detach first")
            self._attachment.close()
            self._attachment = None
        ranks = range(layout.ranks) if map_ranks is None else map_ranks
        check_ranks(ranks, layout.ranks)
        response = ask_attach(self._service, layout, build=build, lease_seconds=lease_seconds)
        try:
            seconds = self._service.deadline_seconds
            pools = map_pools(response, ranks, layout.block_bytes, seconds=seconds, cuda=self._cuda)
        except BaseException:
            give_up(self._service, response.engine)
            raise
        tables = BlockTables(layout.block_tokens)
        self._attached_with = response
        self._attachment = Attachment(self._service, response.engine, pools, tables, lease_seconds)

    def check_service(self) -> None:
        """Returns where a service answers, attached or not. Where nobody is there it fails at once, and an
        attach would try for seconds."""
        self.operator.usage()

    def check_attached(self) -> None:
        """Raises ServiceLost where it was noticed that the service is gone, which the thread that keeps the
        lease does by itself. Asks nobody."""
        self._attached().check()

    @property
    def engine(self) -> str:
        return self._attached().engine

    @property
    def store_epoch(self) -> int:
        return self._attached().store_epoch

    @property
    def pools(self) -> list[MappedPool]:
        """In the order of `map_ranks`."""
        return self._attached().pools

    def share_rank(self, rank: int) -> bytes:
        """For a worker process of this engine, which maps the pool of `rank` with `map_shared_rank`.

        Good once, and for a rank that this client has not mapped itself. It holds the secret that opens the
        pool: give it to the worker alone.
        """
        mapped = {pool.rank for pool in self.pools}
        count = len(self._attached_with.pools)
        if rank in mapped or not 0 <= rank < count:
            raise ClientError(
                f"rank {rank} can't be shared: of {count} ranks, {sorted(mapped)} are mapped here"
            )
        return share_rank(self._attached_with, rank)

    @property
    def frame_count(self) -> int:
        pools = self._attached_with.pools
        return pools[0].frame_count if pools else 0

    @property
    def tables(self) -> BlockTables:
        return self._attached().tables

    @property
    def next_step(self) -> int:
        return self._attached().next_step

    def start_step(
        self,
        operations: Sequence[pb.Operation],
        *,
        completed_step: int,
        timings: Sequence[pb.StepTiming] = (),
    ) -> PendingStep:
        """Sends the next step while the work of the one before is on the GPU.

        `completed_step` is the last step whose work has ended: two below this one when sent one step ahead.
        `timings`: of completed steps, each told once (`operations.timing`): what drop or swap is decided by.
        """
        return self._attached().start_step(operations, completed_step, timings)

    def step(
        self,
        operations: Sequence[pb.Operation],
        *,
        completed_step: int | None = None,
        timings: Sequence[pb.StepTiming] = (),
    ) -> pb.StepResponse:
        """`completed_step` None: all steps before this one have completed."""
        attachment = self._attached()
        if completed_step is None:
            completed_step = attachment.next_step - 1
        return attachment.start_step(operations, completed_step, timings).result()

    def wait_events(self, seconds: float, *, completed_step: int | None = None) -> list[pb.Event]:
        """Waits for events not told yet; may come back early with none.

        With `completed_step` it also tells that work has ended, where no next step is there to say so.
        """
        return self._attached().wait_events(seconds, completed_step)

    def wait_resident(self, sequence: int, seconds: float) -> int:
        """Waits until the sequence's blocks are on the GPU; returns its leading valid tokens.

        They may be fewer than its Allocate had found, if a load has failed. Raises ClientError where the
        time was not enough, or where the sequence has lost its frames and has to be allocated again.
        """
        deadline = time.monotonic() + seconds
        while (state := self.tables.state(sequence)) == pb.Sequence.SWAPPING_IN:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self.wait_events(left)
        if state != pb.Sequence.RESIDENT:
            raise ClientError(f"sequence {sequence} is {pb.Sequence.State.Name(state)}, not RESIDENT")
        return self.tables.valid_tokens(sequence)

    def lookup(self, keys: Sequence[bytes], *, tenant: str = "") -> pb.LookupResponse:
        attachment = self._attached()
        request = pb.LookupRequest(tenant=tenant, block_keys=keys, engine=attachment.engine)
        return attachment.call(self._service.stub.Lookup, request)

    def prefetch(
        self,
        keys: Sequence[bytes] = (),
        *,
        session: str = "",
        target: pb.Tier.ValueType = pb.TIER_CPU,
        tenant: str = "",
    ) -> int:
        """Starts to bring up what is cached of a prompt, or of a session; returns the blocks on their way."""
        attachment = self._attached()
        request = pb.PrefetchRequest(
            engine=attachment.engine, block_keys=keys, session=session, target=target, tenant=tenant
        )
        return attachment.call(self._service.stub.Prefetch, request).blocks_started

    def retain(
        self,
        keys: Sequence[bytes] = (),
        *,
        session: str = "",
        seconds: float,
        priority: int = 0,
        tenant: str = "",
    ) -> int:
        """Keeps what is cached of a prompt, or of a session, longer, each hit for so many seconds more.

        Returns the bytes that are retained: fewer than asked for where the tenant's budget is full.
        """
        attachment = self._attached()
        request = pb.RetainRequest(
            engine=attachment.engine,
            block_keys=keys,
            session=session,
            priority=priority,
            ttl=duration(seconds),
            tenant=tenant,
        )
        return attachment.call(self._service.stub.Retain, request).bytes_retained

    def get_sequence(self, sequence: int) -> pb.Sequence:
        """How one of this engine's sequences stands, as the store has it. Refused: SEQUENCE_UNKNOWN."""
        attachment = self._attached()
        request = pb.GetSequenceRequest(engine=attachment.engine, sequence=sequence)
        return attachment.call(self._service.stub.GetSequence, request)

    def detach(self) -> None:
        """Frees all sequences, at once. It is the engine's word that no work of it is under way.

        Of a service that is lost there is no leave to take.
        """
        attachment = self._attached()
        with contextlib.suppress(ServiceLost):
            attachment.call(self._service.stub.Detach, pb.DetachRequest(name=attachment.engine))
        attachment.close()
        self._attachment = None

    def close(self) -> None:
        """Ends tethers and channel without a word to the service, which sees the tethers end."""
        attachment, self._attachment = self._attachment, None
        if attachment is not None and self._service.in_forked_child:
            attachment.close_pools()
        elif attachment is not None:
            attachment.close()
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Detaches when all went well; where not, work may be under way, and only tethers tell its end."""
        try:
            if kind is None and self._attachment is not None and not self._service.in_forked_child:
                self.detach()
        finally:
            self.close()

    def _attached(self) -> Attachment:
        self._service.check_process()
        if self._attachment is None:
            raise ClientError("not attached: call attach() first")
        return self._attachment
