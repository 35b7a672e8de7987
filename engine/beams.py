"""Beam search: of all answers that are looked at, those which the model as a whole finds likeliest.

A search keeps `width` beginnings of answers, its beams, each a stream of its own. When all have been computed
by one more token, the best continuations of all together become the next beams: one that goes on in several
ways is forked, one that goes on in none is freed. A beginning that the model ends is an answer; answers are
compared by their mean log probability, so that long ones have a chance. The rules are those of
`transformers` with `early_stopping=False` and `length_penalty=1` (Wu et al. 2016, without coverage).
Beams need not run at the same time: what each offers is kept here. Tests: tests/engine/test_beams.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from engine.requests import Stream

__all__ = ["Continuation", "Search"]


@dataclass(frozen=True, slots=True)
class Continuation:
    """A beam with one more token; `score` is the sum of the log probabilities of its tokens."""

    beam: Stream
    token: int
    score: float


class Search:
    """The beams of one request. `leader` computes the prompt, and is the only beam at first."""

    def __init__(self, leader: Stream) -> None:
        self.leader = leader
        self._width = leader.request.beams
        self._stop_ids = leader.request.stop_ids
        # So many of each beam, and of all: with every end among them there are enough that go on.
        self._candidates = max(2, 1 + len(self._stop_ids)) * self._width
        self._scores: dict[Stream, float] = {leader: 0.0}
        self._offers: dict[Stream, list[tuple[int, float]]] = {}
        # Mean log probability and tokens of whole answers, the best first.
        self._answers: list[tuple[float, list[int]]] = []

    @property
    def beams(self) -> list[Stream]:
        return list(self._scores)

    @property
    def is_complete(self) -> bool:
        """Whether all beams have been heard."""
        return len(self._offers) == len(self._scores)

    def has_heard(self, beam: Stream) -> bool:
        return beam in self._offers

    def hear(self, beam: Stream, logits: torch.Tensor) -> None:
        """fp32[vocab] after the beam's last token."""
        count = min(self._candidates, len(logits))
        logarithms, ids = torch.log_softmax(logits.double(), dim=-1).topk(count)
        self._offers[beam] = list(zip(ids.tolist(), logarithms.tolist(), strict=True))

    def choose(self) -> list[Continuation]:
        """What the next beams are, the best first; none where the search is over."""
        length = 1 + len(self.beams[0].answer)
        ranked = sorted(self._continuations(), key=lambda each: -each.score)[: self._candidates]
        going_on = []
        for rank, each in enumerate(ranked):
            if each.token not in self._stop_ids:
                going_on.append(each)
            elif rank < self._width:
                self._keep(each, length)
        going_on = going_on[: self._width]
        if length >= self.leader.request.max_new_tokens:
            for each in going_on:
                self._keep(each, length)
            return []
        return [] if self._is_settled(going_on, length) else going_on

    def go_on(self, beams: Iterable[tuple[Stream, float]]) -> None:
        """These are the beams now, each with its token."""
        self._scores = dict(beams)
        self._offers = {}

    def best(self, count: int) -> Sequence[list[int]]:
        return [tokens for _, tokens in self._answers[:count]]

    def _continuations(self) -> Iterable[Continuation]:
        for beam, score in self._scores.items():
            for token, logarithm in self._offers[beam]:
                yield Continuation(beam, token, score + logarithm)

    def _keep(self, ended: Continuation, length: int) -> None:
        self._answers.append((ended.score / length, [*ended.beam.answer, ended.token]))
        self._answers.sort(key=lambda each: -each[0])
        del self._answers[self._width :]

    def _is_settled(self, going_on: list[Continuation], length: int) -> bool:
        """No beam is as good now as the worst of a full set of answers."""
        is_full = len(self._answers) == self._width
        return not going_on or (is_full and self._answers[-1][0] >= going_on[0].score / length)
