"""Conversations through an engine in one of the five set-ups, with what that needs started for it."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

from engine.engine import Engine
from engine.figures import Figures
from engine.kv.in_process import InProcess
from engine.kv.set_ups import SetUp
from engine.kv.store_client import StoreClient
from engine.model import Llama
from engine.requests import Request, Stream, StreamState
from engine.server.kv_choice import choose_kv
from engine.server.own_service import own_service
from kvstore.client import Client

__all__ = ["STEPS_MAX", "Run", "opened", "run"]

STEPS_MAX = 3000


@dataclass(frozen=True)
class Run:
    answers: dict[str, list[int]]
    cached_tokens: int
    figures: Figures


@contextmanager
def opened(set_up: SetUp, memory_bytes: int) -> Iterator[StoreClient]:
    choice = choose_kv(
        set_up.name,
        memory=str(memory_bytes),
        block_tokens=16,
        reserve_tokens=None,
        device="cpu",
        kvstore="",
        is_own=True,
        tiers={
            **dict.fromkeys(("--gpu", "--folder")),
            "--cpu": "2MiB" if set_up.has_lower_tiers else None,
            "--disk-bytes": "64MiB" if set_up.has_lower_tiers else None,
        },
    )
    with ExitStack() as stack:
        if not set_up.has_service:
            yield InProcess(choice.memory_bytes)
            return
        has_disk = set_up.has_lower_tiers
        own = stack.enter_context(own_service(None, choice.service_flags, has_disk=has_disk))
        address = own.address
        yield Client(address)


def run(set_up: SetUp, model: Llama, script: list[list[Request]], memory_bytes: int, reserve: int) -> Run:
    """`script`: the turns of each conversation; what was said before is put before each."""
    block_tokens = reserve if set_up.is_contiguous else 16
    streams: list[Stream] = []
    with (
        opened(set_up, memory_bytes) as client,
        closing(Engine(model, client, set_up=set_up, block_tokens=block_tokens)) as engine,
    ):
        conversations = [Conversation(list(turns)) for turns in script]
        for step in range(STEPS_MAX):
            for conversation in conversations[: step // 3 + 1]:
                if conversation.is_to_go_on:
                    streams += conversation.go_on(engine)
            engine.step()
            if not engine.has_work and step > 3 * len(script):
                break
        engine.rest()
        figures = engine.figures
    assert all(each.state is StreamState.FINISHED for each in streams)
    cached = sum(each.cached.gpu + each.cached.cpu + each.cached.disk for each in streams)
    answers = {f"{each.request.id}/{each.sample}": each.answer for each in streams}
    return Run(answers, cached, figures)


class Conversation:
    def __init__(self, turns: list[Request]) -> None:
        self._turns = turns
        self._said: Stream | None = None

    @property
    def is_to_go_on(self) -> bool:
        return bool(self._turns) and (self._said is None or self._said.is_done)

    def go_on(self, engine: Engine) -> list[Stream]:
        request = self._turns.pop(0)
        if self._said is not None:
            request = replace(request, prompt=(*self._said.tokens, *request.prompt))
        self._said = engine.submit(request)
        # They leave it when they are forked.
        return [self._said, *self._said.followers]
