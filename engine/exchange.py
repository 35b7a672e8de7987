"""What the engine tells the store, and is told: steps one after the other, and events while it waits.

A step has all that changed since the last. Each, and each wait, names the last step whose work is over as
completed. One may be sent ahead, while the forward pass of the one before runs; its answer is taken when that
is over. Where digests are kept, blocks are looked at as they go into the store's hands and as they come back.
Tests: tests/engine/test_engine.py, test_ahead.py, test_late_device.py.
"""

import time
from collections.abc import Sequence
from functools import partial

from engine.attachment import Attachment
from engine.device import Device
from engine.digests import Digests, Memory
from engine.journeys import compare_received, note_given
from engine.kv.store_client import PendingStep, StoreClient
from engine.requests import Stream, Work
from engine.scheduler import Scheduler
from engine.timings import Timings
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Exchange"]

# Longest wait for an event when nothing can run; and while work of a device is under way, after which its end
# is told.
WAIT_SECONDS = 0.1
BUSY_WAIT_SECONDS = 0.002


class Exchange:
    """Of one engine. Calls raise ServiceLost; what was told before that is among the news all the same."""

    def __init__(
        self,
        news: list[Stream],
        scheduler: Scheduler,
        client: StoreClient,
        device: Device,
        attachment: Attachment,
        *,
        digests: Digests | None,
        block_tokens: int,
    ) -> None:
        """`news`: where streams go of which something was told."""
        self._news = news
        self._scheduler = scheduler
        self._client = client
        self._device = device
        self._attachment = attachment
        self._digests = digests
        self._block_tokens = block_tokens
        # A step that was sent ahead: what it asks for, and its answer to come.
        self._sent: tuple[list[pb.Operation], PendingStep] | None = None
        self._timings = Timings()

    def step(self) -> None:
        """Tells the store all that has changed, and does as it answers.

        Who has come since a step was sent ahead, or waits for what has just come free, is not kept waiting
        for the next: then another is sent at once.
        """
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

    def send_ahead(self, work: Work) -> None:
        """The next step, while the results of this pass are to come."""
        asked = self._scheduler.operations(self._client.tables, time.monotonic(), work)
        self._sent = asked, self._start_step(asked)

    def note_pass(self, work: Work) -> None:
        """Work of the last step, before its streams are counted as computed."""
        self._timings.note(self._client.next_step - 1, work)

    def wait(self) -> None:
        """For events, a little."""
        completed = self._device.completed_step()
        seconds = BUSY_WAIT_SECONDS if self._device.is_busy else WAIT_SECONDS
        events = self._client.wait_events(seconds, completed_step=completed)
        self._receive(self._scheduler.take_events(events))

    def end(self) -> None:
        """Nothing is under way any more; what is answered changes nothing."""
        if self._sent is not None:
            self._sent[1].result()

    def start_over(self) -> None:
        """The service was lost, with all that it was told."""
        self._sent = None
        self._timings = Timings()
        if self._digests is not None:
            self._digests.forget_tails()

    def _start_step(self, asked: Sequence[pb.Operation]) -> PendingStep:
        completed = self._device.completed_step()
        timings = self._timings.take(self._device.take_seconds(), completed)
        return self._client.start_step(asked, completed_step=completed, timings=timings)

    def _take(self, asked: Sequence[pb.Operation], pending: PendingStep) -> None:
        response = pending.result()
        if response.copies:
            sources = [copy.source for copy in response.copies]
            targets = [copy.target for copy in response.copies]
            self._device.copy_frames(self._attachment.frames, sources, targets, self._attachment.block_bytes)
        self._receive(self._scheduler.take(asked, response))

    @property
    def _memory(self) -> Memory:
        return partial(self._device.read, self._attachment.frames)

    def _note_journeys(self, asked: Sequence[pb.Operation]) -> None:
        if self._digests is not None:
            note_given(self._digests, asked, self._client.tables, self._memory, self._block_tokens)

    def _receive(self, streams: list[Stream]) -> None:
        self._news += streams
        if self._digests is not None:
            compare_received(self._digests, streams, self._client.tables, self._memory, self._block_tokens)
