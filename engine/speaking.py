"""What becomes of logits: tokens of streams, of their followers, and of the beams of a search.

It stands between the model, which computes streams, and the scheduler, which is told who forks and who ends.
Tests: tests/engine/test_engine.py, test_samples.py, test_beams.py.
"""

from collections.abc import Sequence

import torch

from engine.beams import Continuation, Search
from engine.requests import Stream, StreamState
from engine.sampling import choose
from engine.scheduler import Scheduler

__all__ = ["Speaking"]


class Speaking:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        # By each of its beams, and by its leader.
        self._searches: dict[Stream, Search] = {}

    def speak(self, streams: Sequence[Stream], logits: torch.Tensor) -> list[Stream]:
        """Streams whose tokens have all been computed, and fp32[streams, vocab] after the last of each.

        Returns those that have news by it.
        """
        news = self._add_tokens(
            [(row, each) for row, each in enumerate(streams) if not _searches(each)], logits
        )
        # Known before any is heard: then others may go on from it, or in its place with one more token.
        hearing = [row for row, each in enumerate(streams) if _searches(each) and not self._was_heard(each)]
        for row in hearing:
            news += self._hear(streams[row], logits[row])
        return news

    def end_with(self, stream: Stream) -> list[Stream]:
        """One has failed, or was cancelled: what it was looking for ends too. Returns who else has ended."""
        search = self._searches.get(stream)
        if search is None:
            return []
        leader = search.leader
        answers = [leader, *leader.followers]
        for answer in answers:
            if not answer.is_done:
                answer.state, answer.reason = stream.state, stream.reason
        self._end(search, "its search has ended")
        return answers

    # ------------------------------------------------------------------- one token a stream

    def _add_tokens(self, rows: Sequence[tuple[int, Stream]], logits: torch.Tensor) -> list[Stream]:
        # Followers have no row of their own: each draws from the logits of the one that it follows.
        speaking = [(row, each) for row, stream in rows for each in (stream, *stream.followers)]
        if not speaking:
            return []
        draws = [(each.request.sampling, each.sample, len(each.tokens)) for _, each in speaking]
        choices = choose(logits[[row for row, _ in speaking]], draws)
        for (_, stream), choice in zip(speaking, choices, strict=True):
            stream.add(choice)
        for _, stream in rows:
            if stream.followers:
                self._scheduler.fork(stream)
            if stream.is_done:
                self._scheduler.end(stream)
        return [stream for _, stream in speaking]

    # ------------------------------------------------------------------------ beam searches

    def _was_heard(self, beam: Stream) -> bool:
        """It has offered what could follow, and waits for others; since then the service was lost, and it was
        computed again."""
        search = self._searches.get(beam)
        return search is not None and search.has_heard(beam)

    def _hear(self, beam: Stream, logits: torch.Tensor) -> list[Stream]:
        search = self._searches.get(beam)
        if search is None:
            search = self._searches[beam] = Search(beam)
        search.hear(beam, logits)
        if not search.is_complete:
            return []
        if going_on := search.choose():
            self._go_on(search, going_on)
            return []
        leader = search.leader
        answers = [leader, *leader.followers]
        for answer, tokens in zip(answers, search.best(len(answers)), strict=True):
            if not answer.is_done:
                answer.finish(tokens)
        self._end(search, "another beam was better")
        return answers

    def _go_on(self, search: Search, going_on: Sequence[Continuation]) -> None:
        """The first way of a beam goes on in its place, the others in branches; who has none is freed."""
        leader, used = search.leader, set()
        beams: list[tuple[Stream, float, int]] = []
        for each in going_on:
            is_branch = each.beam is leader or each.beam in used
            used.add(each.beam)
            beam = self._scheduler.branch(each.beam) if is_branch else each.beam
            beams.append((beam, each.score, each.token))
        for beam in search.beams:
            if beam is leader:
                leader.state = StreamState.SEARCHING
                self._scheduler.end(leader)
            elif beam not in used:
                self._scheduler.cancel(beam, "another beam was better")
                del self._searches[beam]
        # Not before all have branched off: a branch takes over what the beam had.
        for beam, _, token in beams:
            beam.take(token)
            self._searches[beam] = search
        search.go_on((beam, score) for beam, score, _ in beams)

    def _end(self, search: Search, reason: str) -> None:
        for beam in search.beams:
            if beam is not search.leader:
                self._scheduler.cancel(beam, reason)
            elif self._scheduler.has(beam):
                self._scheduler.end(beam)
        for stream in [stream for stream, each in self._searches.items() if each is search]:
            del self._searches[stream]


def _searches(stream: Stream) -> bool:
    return stream.request.beams > 1
