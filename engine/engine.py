"""The engine: one loop that asks for memory, runs the model, and asks again.

Each iteration sends one Step with all that changed since the last, then runs one forward pass over what the
answer allows. Each step, and each wait, names the last step whose work is over as completed: on a CPU the one
before, on a GPU the one that the device says it of (`device.py`), since there a call returns before its work
is over. One step ahead (`is_ahead`) step n+1 is sent while the forward pass of step n runs, with n-1 as
completed at the most, and its answer is taken when that pass is over: a CPU, whose calls return when all is
done, has it sent before the pass begins, a GPU behind it. Who has come meanwhile, or waits for what has just
come free, is not kept waiting for it: then another step is sent at once.

When the service is lost the engine tries to attach again (`attachment.py`), and then admits all unfinished
requests by their keys, with the tokens that they have so far. Tests: tests/engine/test_engine.py,
kv/test_set_ups.py.
"""

import time
from collections.abc import Sequence
from functools import partial

from engine.acceptance import AnswerRoom, EngineError, check_request, find_answer_room
from engine.attachment import Attachment
from engine.batching import make_batch
from engine.device import CpuDevice, Device
from engine.digests import Digests, Memory
from engine.figures import Counting, Figures
from engine.journeys import compare_received, note_given
from engine.kv.set_ups import FULL, SetUp
from engine.kv.store_client import PendingStep, StoreClient
from engine.model import Llama
from engine.requests import Request, Stream, Work
from engine.scheduler import Scheduler
from engine.scheduling.promises import Promises
from engine.speaking import Speaking
from engine.timings import Timings
from kvstore.client import ServiceLost
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Engine", "EngineError"]

# Longest wait for an event when nothing can run; and while work of a device is under way, after which its end
# is told.
WAIT_SECONDS = 0.1
BUSY_WAIT_SECONDS = 0.002


class Engine:
    """Streams over one service. Used by one thread; close it, or use it in a `with`."""

    def __init__(
        self,
        model: Llama,
        client: StoreClient,
        *,
        set_up: SetUp = FULL,
        device: Device | None = None,
        digests: Digests | None = None,
        block_tokens: int = 16,
        running_max: int = 16,
        attach_seconds: float = 60.0,
        is_ahead: bool = False,
    ) -> None:
        """Attaches. `set_up`: what `client` is, and whether there is preemption; where that is contiguous
        `block_tokens` are all that a request may have. `device`: where the model's weights are, by
        `Device.place`; the CPU by default. `digests`: to prove that blocks keep their bytes; it
        remembers all that were committed.

        `attach_seconds`: how long a service may be away before that is an error; it may be set later too.
        `is_ahead`: each step is sent while the forward pass of the one before runs.
        """
        self._digests = digests
        self._model = model
        self._device: Device = device or CpuDevice()
        self._client = client
        self._block_tokens = block_tokens
        self._attachment = Attachment(
            model, client, self._device, block_tokens=block_tokens, seconds=attach_seconds
        )
        shares = set_up.has_service
        self._promises = None if set_up.preempts else Promises(block_tokens, shares=shares)
        self._scheduler = Scheduler(
            block_tokens, running_max=running_max, promises=self._promises, finds_blocks=shares
        )
        self._reserve_tokens = block_tokens if set_up.is_contiguous else None
        self._counting = Counting(block_tokens)
        self._speaking = Speaking(self._scheduler)
        self._is_ahead = is_ahead
        # A step that was sent ahead: what it asks for, and its answer to come.
        self._sent: tuple[list[pb.Operation], PendingStep] | None = None
        self._news: list[Stream] = []
        self._timings = Timings()
        while not self._attach():
            pass

    @property
    def name(self) -> str:
        """As the store calls it; another one after each loss of the service."""
        return self._client.engine

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def is_attached(self) -> bool:
        """False between the loss of the service and the Attach that succeeds."""
        return self._attachment.is_there

    @property
    def attachments(self) -> int:
        """How often it has attached."""
        return self._attachment.count

    @property
    def attach_seconds(self) -> float:
        return self._attachment.seconds

    @attach_seconds.setter
    def attach_seconds(self, seconds: float) -> None:
        self._attachment.seconds = seconds

    @property
    def figures(self) -> Figures:
        """As they were lately; from any thread."""
        return self._counting.latest

    def find_answer_room(self, prompt_tokens: int, *, samples: int, beams: int) -> AnswerRoom:
        """By the pool that it has, or had last; from any thread."""
        return find_answer_room(
            prompt_tokens,
            samples=samples,
            beams=beams,
            block_tokens=self._block_tokens,
            frame_count=self._attachment.frame_count,
            promises=self._promises,
        )

    def submit(self, request: Request) -> Stream:
        """Refuses what could never be computed; whether there is memory for it the store will say."""
        check_request(
            request, self._model.config, reserve_tokens=self._reserve_tokens, promises=self._promises
        )
        return self._scheduler.submit(request)

    def cancel(self, stream: Stream, reason: str) -> None:
        """Ends it, and those who follow it: what it holds goes back with the next step, which tells nothing
        more of it. Nothing happens to one that is done."""
        self._scheduler.cancel(stream, reason)
        self._speaking.end_with(stream)

    def step(self) -> list[Stream]:
        """One iteration; returns the streams with news: admitted, given a token, or done.

        Without a service it is one try to attach.
        """
        if not self.is_attached and not self._attach():
            return []
        try:
            self._exchange()
            if keys := self._scheduler.next_hint(len(self._attachment.frames)):
                self._client.prefetch(keys)
            work = self._scheduler.next_work()
            if work is not None:
                self._run(work)
            self._device.end_step(self._client.next_step - 1)
            self._counting.look(self._scheduler, self._client)
            if work is None and self._scheduler.is_waiting:
                self._wait()
        except ServiceLost:
            self._lose()
        # A loss in the middle takes no news with it.
        news, self._news = self._news, []
        # Who waited for one that has ended has ended with it.
        for stream in [each for each in news if each.is_done]:
            news += [*stream.followers, *self._speaking.end_with(stream)]
        return list(dict.fromkeys(news))

    def rest(self) -> None:
        """To be called now and then while there is no work: a lost service is noticed here too."""
        if not self.is_attached:
            self._attach()
            return
        try:
            self._counting.look(self._scheduler, self._client)
            self._client.wait_events(0.0, completed_step=self._device.completed_step())
        except ServiceLost:
            self._lose()

    def close(self) -> None:
        """Leaves the service, which frees what is still running."""
        try:
            # To leave is to say that no work is under way.
            self._attachment.let_go()
            if self._sent is not None:
                self._sent[1].result()
            if self.is_attached:
                self._client.detach()
        except ServiceLost:
            pass
        finally:
            self._client.close()

    def _lose(self) -> None:
        self._attachment.lose()
        self._sent = None
        self._scheduler.start_over()
        self._timings = Timings()
        if self._digests is not None:
            self._digests.forget_tails()

    def _attach(self) -> bool:
        if not self._attachment.try_attach():
            return False
        if self._promises is not None:
            self._promises.frame_count = self._attachment.frame_count
        return True

    @property
    def _memory(self) -> Memory:
        return partial(self._device.read, self._attachment.frames)

    # ---------------------------------------------------------------- what the store is told

    def _exchange(self) -> None:
        sent, self._sent = self._sent, None
        if sent is not None:
            asked, pending = sent
            # Nothing of it leaves its frame before the next step says that the pass is over.
            self._note_journeys(asked)
            self._take(asked, pending)
            if not self._scheduler.is_behind:
                return
        asked = self._scheduler.operations(self._client.tables, time.monotonic())
        self._note_journeys(asked)
        self._take(asked, self._start_step(asked))

    def _take(self, asked: Sequence[pb.Operation], pending: PendingStep) -> None:
        response = pending.result()
        if response.copies:
            sources = [copy.source for copy in response.copies]
            targets = [copy.target for copy in response.copies]
            self._device.copy_frames(self._attachment.frames, sources, targets, self._attachment.block_bytes)
        self._receive(self._scheduler.take(asked, response))

    def _send_ahead(self, work: Work) -> None:
        """The next step, while the results of the last one's pass are to come."""
        asked = self._scheduler.operations(self._client.tables, time.monotonic(), work)
        self._sent = asked, self._start_step(asked)

    def _start_step(self, asked: Sequence[pb.Operation]) -> PendingStep:
        completed = self._device.completed_step()
        timings = self._timings.take(self._device.take_seconds(), completed)
        return self._client.start_step(asked, completed_step=completed, timings=timings)

    def _wait(self) -> None:
        completed = self._device.completed_step()
        seconds = BUSY_WAIT_SECONDS if self._device.is_busy else WAIT_SECONDS
        events = self._client.wait_events(seconds, completed_step=completed)
        self._receive(self._scheduler.take_events(events))

    def _note_journeys(self, asked: Sequence[pb.Operation]) -> None:
        if self._digests is not None:
            note_given(self._digests, asked, self._client.tables, self._memory, self._block_tokens)

    def _receive(self, streams: list[Stream]) -> None:
        self._news += streams
        if self._digests is not None:
            compare_received(self._digests, streams, self._client.tables, self._memory, self._block_tokens)

    # -------------------------------------------------------------------- what is computed

    def _run(self, work: Work) -> None:
        """One forward pass; streams that have been fed all their tokens get the next one."""
        self._counting.note_pass(work)
        batch = make_batch(work, self._client.tables, self._block_tokens)
        if self._is_ahead and not self._device.is_late:
            self._send_ahead(work)
        logits = self._device.forward(self._model, batch, self._attachment.pool)
        if self._is_ahead and self._device.is_late:
            self._send_ahead(work)
        self._timings.note(self._client.next_step - 1, work)
        for stream, token_count in zip(work.streams, work.token_counts, strict=True):
            stream.computed += token_count
        fed = [row for row, stream in enumerate(work.streams) if not stream.tokens_pending]
        if fed:
            self._news += self._speaking.speak([work.streams[row] for row in fed], logits()[fed])
