"""A search of which some beams were heard when the service was lost: computed again, and heard once."""

import random
from collections.abc import Sequence

import pytest
import torch

from engine.requests import Request, Stream, StreamState
from engine.speaking import Speaking
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.talk import BLOCK_TOKENS, Talk, granted

VOCAB = 40
# After some tokens of the answer what is left behind whole blocks is one token, as with those who decode.
PROMPT = tuple(range(1, 60))


def logits_of(tokens: Sequence[int]) -> torch.Tensor:
    """fp32[VOCAB], which depend on the tokens and on nothing else."""
    generator = torch.Generator().manual_seed(hash(tuple(tokens)) % 2**31)
    return torch.randn(VOCAB, generator=generator)


def found_on_disk(operation: pb.Operation) -> pb.Result:
    """Every whole block before the last token: who has been computed once has little to compute again."""
    if operation.WhichOneof("kind") != "allocate":
        return granted(operation)
    return granted(operation, (operation.allocate.token_count - 1) // BLOCK_TOKENS * BLOCK_TOKENS)


class Searcher:
    """A scheduler, what it is told of a search, and a model whose passes compute some of who could run."""

    def __init__(self, beams: int, seed: int) -> None:
        self.talk = Talk()
        self.speaking = Speaking(self.talk.scheduler)
        self.losses = 0
        self._draw = random.Random(seed)
        request = Request(id="b", prompt=PROMPT, max_new_tokens=8, samples=2, beams=beams)
        self.leader = self.talk.scheduler.submit(request)

    def step(self) -> None:
        self.talk.step(found_on_disk)
        work = self.talk.scheduler.next_work()
        if work is None:
            return
        # As where room is short: some beams wait for others.
        drawn = [each for each in work.decoded if self._draw.random() < 0.6] or work.decoded[:1]
        fed: list[Stream] = []
        for stream in [*drawn, *work.prefilled]:
            stream.computed += work.tokens_of(stream)
            fed += [] if stream.tokens_pending else [stream]
        if fed:
            self.speaking.speak(fed, torch.stack([logits_of(each.tokens) for each in fed]))

    def lose(self) -> None:
        self.losses += 1
        self.talk.scheduler.start_over()


def found(beams: int, seed: int, losses: float) -> list[list[int]]:
    """The answers, the service being lost with this probability at each step."""
    searcher, draw = Searcher(beams, seed), random.Random(seed)
    for _ in range(1000):
        if searcher.leader.is_done:
            break
        if draw.random() < losses and searcher.losses < 10:
            searcher.lose()
        searcher.step()
    assert searcher.leader.state is StreamState.FINISHED
    assert bool(searcher.losses) == bool(losses)
    return [searcher.leader.answer]


@pytest.mark.parametrize("beams", [2, 3, 5])
def test_the_answer_is_the_same_however_often_the_service_is_lost(beams: int) -> None:
    right = found(beams, 0, 0.0)
    for seed in range(1, 20):
        assert found(beams, seed, 0.2) == right
