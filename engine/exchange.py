"""What the engine tells the store, and is told: steps one after the other, and events while it waits.

A step has all that changed since the last. Each, and each wait, names the last step whose work is over as
completed. One may be sent ahead, while a pass of the one before runs; its answer is taken when that is over.
Steps for which nobody waits (`Scheduler.haste`) are left out, some in a row: each takes processor time, which
a model on the same machine computes with, and an answer to think about. What gives something back, or has
others find something, goes sooner, and so does the word that the work before it is over.

Where digests are kept, blocks are looked at as they go into the store's hands and as they come back.
Tests: tests/engine/test_engine.py, test_ahead.py, test_left_out.py, test_left_out_drawn.py,
test_late_device.py.
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
from engine.scheduler import Haste, Scheduler
from engine.steps import Steps
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Exchange"]

# Longest wait for an event when nothing can run; and while work of a device is under way, after which its end
# is told.
WAIT_SECONDS = 0.1
BUSY_WAIT_SECONDS = 0.002
# So many steps in a row may be left out: what the store does by itself is heard of so much later. Room for
# as many tokens is asked for at once, so of blocks of 16 tokens some are taken half a block early.
LEFT_OUT_MAX = 7
# Of those which others may wait for.
LEFT_OUT_SOON_MAX = 2


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
        # How many were left out since the last step; whether that ahead of the next pass is one.
        self._left_out = 0
        self._is_left_out = False
        self._steps = Steps(device)
        # Which step was told as completed, and which is to be soon.
        self._told = self._due = 0

    def step(self) -> None:
        """Tells the store all that has changed, and does as it answers.

        Who has come since a step was sent ahead, or waits for what has just come free, is not kept waiting
        for the next: then another is sent at once.
        """
        was_left_out, self._is_left_out = self._is_left_out, False
        if was_left_out:
            if not self._scheduler.is_behind:
                return
            self._steps.end_step(self._last_step)
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
        self._take(asked, self._start_step(asked, is_awaited=True))

    def send_ahead(self, work: Work) -> None:
        """The next step, while the results of this pass are to come; or none."""
        haste = self._scheduler.haste(work)
        if self._left_out < self._left_out_max(haste):
            self._is_left_out = True
            self._left_out += 1
            return
        asked = self._scheduler.operations(
            self._client.tables, time.monotonic(), work, spare_tokens=LEFT_OUT_MAX
        )
        self._sent = asked, self._start_step(asked, is_awaited=haste is not Haste.NONE)

    def note_work(self, work: Work) -> None:
        """Of this pass, before its streams are counted as computed."""
        self._steps.note_work(self._last_step, work)

    def end_pass(self) -> None:
        """All its work has been given to the device. It was its step's last, unless the next is left out."""
        self._steps.end_pass()
        if not self._is_left_out:
            self._steps.end_step(self._last_step)

    def wait(self) -> None:
        """For events, a little."""
        completed = self._steps.completed()
        self._hear(completed, BUSY_WAIT_SECONDS if self._steps.is_busy else WAIT_SECONDS)

    def rest(self) -> None:
        """While there is no work: what has ended is told once, and a service that is gone noticed."""
        completed = self._steps.completed()
        if completed == self._told:
            self._client.check_attached()
        else:
            self._hear(completed, 0.0)

    def end(self) -> None:
        """Nothing is under way any more; what is answered changes nothing."""
        if self._sent is not None:
            self._sent[1].result()

    def start_over(self) -> None:
        """The service was lost, with all that it was told."""
        self._sent = None
        self._is_left_out, self._left_out = False, 0
        self._steps = Steps(self._device)
        self._told = self._due = 0
        if self._digests is not None:
            self._digests.forget_tails()

    @property
    def _last_step(self) -> int:
        """Of those that were answered."""
        return self._client.next_step - 1

    def _left_out_max(self, haste: Haste) -> int:
        if haste is Haste.NOW:
            return 0
        return LEFT_OUT_MAX if haste is Haste.NONE and self._told >= self._due else LEFT_OUT_SOON_MAX

    def _start_step(self, asked: Sequence[pb.Operation], *, is_awaited: bool) -> PendingStep:
        """`is_awaited`: by others, who are helped when the work before it has been told as completed."""
        self._left_out = 0
        self._told = self._steps.completed()
        if is_awaited:
            self._due = self._last_step
        return self._client.start_step(asked, completed_step=self._told, timings=self._steps.take_timings())

    def _hear(self, completed: int, seconds: float) -> None:
        self._told = completed
        events = self._client.wait_events(seconds, completed_step=completed)
        self._receive(self._scheduler.take_events(events))

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
