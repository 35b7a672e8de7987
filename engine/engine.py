"""The engine: one loop that asks for memory, runs the model, and asks again.

Each iteration sends one Step (`exchange.py`), then runs one forward pass over what the answer allows.
Completed is, on a CPU, the step before, on a GPU the one of which the device says so (`device.py`), since
there a call returns before its work is over. One step ahead (`is_ahead`) step n+1 is sent while the forward
pass of step n runs, with n-1 as completed at the most, and its answer is taken when that pass is over: a CPU,
whose calls return when all is done, has it sent before the pass begins, a GPU behind it. So it may also be
left out, and then the next pass is step n's work as well.

When the service is lost the engine tries to attach again (`attachment.py`), and then admits all unfinished
requests by their keys, with the tokens that they have so far. Tests: tests/engine/test_engine.py,
kv/test_set_ups.py.
"""

from engine.acceptance import AnswerRoom, EngineError, check_request, find_answer_room
from engine.attachment import Attachment
from engine.batching import make_batch
from engine.device import CpuDevice, Device
from engine.digests import Digests
from engine.exchange import Exchange
from engine.figures import Counting, Figures
from engine.kv.set_ups import FULL, SetUp
from engine.kv.store_client import StoreClient
from engine.model import Llama
from engine.requests import Request, Stream, Work
from engine.scheduler import Scheduler
from engine.scheduling.promises import Promises
from engine.speaking import Speaking
from kvstore.client import ServiceLost

__all__ = ["Engine", "EngineError"]


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
        `is_ahead`: each step is sent while the forward pass of the one before runs, or left out.
        """
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
        self._news: list[Stream] = []
        self._exchange = Exchange(
            self._news,
            self._scheduler,
            client,
            self._device,
            self._attachment,
            digests=digests,
            block_tokens=block_tokens,
        )
        self._reserve_tokens = block_tokens if set_up.is_contiguous else None
        self._counting = Counting(block_tokens)
        self._speaking = Speaking(self._scheduler)
        self._is_ahead = is_ahead
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
            self._exchange.step()
            if keys := self._scheduler.next_hint(len(self._attachment.frames)):
                self._client.prefetch(keys)
            work = self._scheduler.next_work()
            if work is not None:
                self._run(work)
            self._exchange.end_pass()
            self._counting.look(self._scheduler, self._client)
            if work is None and self._scheduler.is_waiting:
                self._exchange.wait()
        except ServiceLost:
            self._lose()
        # A loss in the middle takes no news with it.
        news = self._news.copy()
        self._news.clear()
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
            self._exchange.rest()
        except ServiceLost:
            self._lose()

    def close(self) -> None:
        """Leaves the service, which frees what is still running."""
        try:
            # To leave is to say that no work is under way.
            self._attachment.let_go()
            self._exchange.end()
            if self.is_attached:
                self._client.detach()
        except ServiceLost:
            pass
        finally:
            self._client.close()

    def _lose(self) -> None:
        self._attachment.lose()
        self._exchange.start_over()
        self._scheduler.start_over()

    def _attach(self) -> bool:
        if not self._attachment.try_attach():
            return False
        if self._promises is not None:
            self._promises.frame_count = self._attachment.frame_count
        return True

    def _run(self, work: Work) -> None:
        """One forward pass; streams that have been fed all their tokens get the next one."""
        self._counting.note_pass(work)
        batch = make_batch(work, self._client.tables, self._block_tokens)
        if self._is_ahead and not self._device.is_late:
            self._exchange.send_ahead(work)
        logits = self._device.forward(self._model, batch, self._attachment.pool)
        if self._is_ahead and self._device.is_late:
            self._exchange.send_ahead(work)
        self._exchange.note_work(work)
        for stream, token_count in zip(work.streams, work.token_counts, strict=True):
            stream.computed += token_count
        fed = [row for row, stream in enumerate(work.streams) if not stream.tokens_pending]
        if fed:
            self._news += self._speaking.speak([work.streams[row] for row in fed], logits()[fed])
