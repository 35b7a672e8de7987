"""What an engine does with its memory, in figures: how much of it requests hold, and how much of that is KV.

Counted by the engine's thread between two steps, and read by any. Tests: tests/engine/test_figures.py.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from engine.kv.store_client import StoreClient
from engine.requests import Stream, StreamState, Work
from engine.scheduler import Scheduler
from kvstore.client import BlockTables

__all__ = ["NO_FIGURES", "Counting", "Figures", "count_tokens"]

# While something is done they are counted no more often: to look at all tables takes some ten microseconds.
EVERY_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """As things were after a step. Of memory in tokens, of the GPU tier or of the engine's own pool."""

    # That there is room for.
    kv_tokens_capacity: int = 0
    # Room in frames that requests hold, each frame counted once.
    kv_tokens_held: int = 0
    # Of these, those whose KV is written.
    kv_tokens_live: int = 0
    # Sequences with frames, and those that wait for some.
    requests_running: int = 0
    requests_waiting: int = 0
    # Since the engine was made: tokens of prompts fed to the model, and of what was lost and computed again;
    # sequences swapped out or dropped for want of room; forward passes.
    prompt_tokens_computed: int = 0
    preemptions: int = 0
    steps: int = 0


NO_FIGURES = Figures()


class Counting:
    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._prompt_tokens = self._passes = 0
        self._next_at = 0.0
        self.latest = NO_FIGURES

    def note_pass(self, work: Work) -> None:
        """Before its streams are counted as computed."""
        self._passes += 1
        last = sum(stream.computed < len(stream.request.prompt) for stream in work.decoded)
        self._prompt_tokens += work.chunk_tokens + last

    def look(self, scheduler: Scheduler, client: StoreClient) -> None:
        """Between two steps; where nothing is left to be done it looks for sure."""
        now = time.monotonic()
        if scheduler.has_work and now < self._next_at:
            return
        self._next_at = now + EVERY_SECONDS
        holding = scheduler.holding
        held, live = count_tokens(holding, client.tables, self._block_tokens)
        self.latest = Figures(
            kv_tokens_capacity=client.frame_count * self._block_tokens,
            kv_tokens_held=held,
            kv_tokens_live=live,
            requests_running=len(holding),
            requests_waiting=len(scheduler.streams) - len(holding),
            prompt_tokens_computed=self._prompt_tokens,
            preemptions=scheduler.preemptions,
            steps=self._passes,
        )


def count_tokens(holding: Iterable[Stream], tables: BlockTables, block_tokens: int) -> tuple[int, int]:
    """Room in the frames of these streams, and of that what is written."""
    written: dict[int, int] = {}
    for stream in holding:
        if stream.sequence not in tables:
            continue
        table = tables.table(stream.sequence)
        # What is being loaded is not there yet.
        tokens = stream.computed if stream.state is StreamState.RUNNING else 0
        full, part = divmod(tokens, block_tokens)
        written.update(dict.fromkeys(table[:full], block_tokens))
        for frame, count in zip(table[full:], [part, *[0] * len(table)], strict=False):
            written[frame] = max(count, written.get(frame, 0))
    return len(written) * block_tokens, sum(written.values())
