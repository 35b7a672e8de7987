"""Loads on the server over HTTP: who asks what and when, and what came back at which moment.

A `Job` is one client's turns, each asked when the one before has been answered. In a closed loop so many
clients take one job after the other; in an open loop each job begins at its own time, whoever else is there.
Answers are streamed. The server sends the head of a stream with its first token, so the time to the first
token ends there; a gap is the time between two of its pieces, as a rule a token each.
"""

import asyncio
import json
import random
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

__all__ = ["Answer", "Job", "Run", "arrivals", "run_closed", "run_open"]

SECONDS_MAX = 600.0
EVENT = "data: "

# What a user says, or a whole prompt as tokens.
Turn = str | tuple[int, ...]
Transport = httpx.AsyncBaseTransport | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    turns: tuple[Turn, ...]
    answer_tokens: int
    # The conversation that the server is told of; empty: none.
    session: str = ""
    # Before the first message, if they are messages.
    system: str = ""
    # In an open loop: seconds after the load's beginning.
    starts_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str
    finish: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token_seconds: float
    # Between its pieces.
    gaps: tuple[float, ...]
    seconds: float

    @property
    def said(self) -> tuple[str, str, int, int]:
        """What has to be the same however the server keeps its KV."""
        return self.text, self.finish, self.prompt_tokens, self.completion_tokens


@dataclass(frozen=True, slots=True)
class Run:
    """Answers by job, in the order of the jobs; and what all of it took."""

    jobs: tuple[tuple[Answer, ...], ...]
    seconds: float

    @property
    def answers(self) -> list[Answer]:
        return [answer for job in self.jobs for answer in job]


def run_closed(url: str, model: str, jobs: Sequence[Job], clients: int, transport: Transport = None) -> Run:
    """So many clients, each of which takes the next job when its last is done. `transport`: another than
    HTTP over TCP."""
    return _run(_Load(url, model, jobs, transport).closed(clients))


def run_open(url: str, model: str, jobs: Sequence[Job], transport: Transport = None) -> Run:
    """Each job begins at its `starts_at`."""
    return _run(_Load(url, model, jobs, transport).open())


def arrivals(count: int, per_second: float, seed: int) -> list[float]:
    """Seconds from the beginning, of a Poisson process."""
    made, at, found = random.Random(seed), 0.0, []
    for _ in range(count):
        at += made.expovariate(per_second)
        found.append(at)
    return found


def _run(load: Coroutine[Any, Any, Run]) -> Run:
    try:
        return asyncio.run(load)
    except BaseExceptionGroup as group:
        failed = group.subgroup(_LoadFailed)
        if failed is None:
            raise
        raise SystemExit(str(failed.exceptions[0])) from None


class _LoadFailed(Exception):
    """An answer that is none; the message says what came instead."""


class _Load:
    def __init__(self, url: str, model: str, jobs: Sequence[Job], transport: Transport) -> None:
        self._url, self._model, self._jobs, self._transport = url, model, jobs, transport
        self._answers: list[list[Answer]] = [[] for _ in jobs]

    async def closed(self, clients: int) -> Run:
        async with self._client() as client:
            rest: Iterator[int] = iter(range(len(self._jobs)))

            async def work() -> None:
                for place in rest:
                    await self._do(client, place)

            began = time.perf_counter()
            await _together([work() for _ in range(clients)])
            return self._run(began)

    async def open(self) -> Run:
        async with self._client() as client:

            async def work(place: int) -> None:
                await asyncio.sleep(self._jobs[place].starts_at)
                await self._do(client, place)

            began = time.perf_counter()
            await _together([work(place) for place in range(len(self._jobs))])
            return self._run(began)

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._url,
            timeout=SECONDS_MAX,
            limits=httpx.Limits(max_connections=None),
            transport=self._transport,
            trust_env=False,
        )

    def _run(self, began: float) -> Run:
        return Run(tuple(tuple(answers) for answers in self._answers), time.perf_counter() - began)

    async def _do(self, client: httpx.AsyncClient, place: int) -> None:
        job = self._jobs[place]
        messages = [{"role": "system", "content": job.system}] if job.system else []
        for turn in job.turns:
            if isinstance(turn, str):
                messages.append({"role": "user", "content": turn})
                answer = await self._ask(client, "/v1/chat/completions", job, {"messages": messages})
                messages.append({"role": "assistant", "content": answer.text})
            else:
                answer = await self._ask(client, "/v1/completions", job, {"prompt": turn})
            self._answers[place].append(answer)

    async def _ask(self, client: httpx.AsyncClient, path: str, job: Job, what: dict[str, Any]) -> Answer:
        body = {"model": self._model, "max_tokens": job.answer_tokens, "temperature": 0, "stream": True}
        body |= {"stream_options": {"include_usage": True}, **what}
        if job.session:
            body["session"] = job.session
        heard = _Heard()
        async with client.stream("POST", path, json=body) as response:
            if response.status_code != httpx.codes.OK:
                told = (await response.aread()).decode(errors="replace")
                raise _LoadFailed(f"{path} was answered with status {response.status_code}: {told}")
            heard.begin()
            async for line in response.aiter_lines():
                heard.hear(line)
        return heard.answer()


@dataclass(slots=True)
class _Heard:
    """One stream of events."""

    asked: float = field(default_factory=time.perf_counter)
    times: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish: str = ""
    usage: dict[str, Any] = field(default_factory=dict)

    def begin(self) -> None:
        self.times.append(time.perf_counter())

    def hear(self, line: str) -> None:
        if not line.startswith(EVENT) or line == f"{EVENT}[DONE]":
            return
        event = json.loads(line.removeprefix(EVENT))
        if "error" in event:
            raise _LoadFailed(f"an answer has ended in an error: {event['error']}")
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            # A completion's, or a chat's.
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            self.finish = choice["finish_reason"] or self.finish
            if text:
                # The first comes with the head.
                if self.texts:
                    self.times.append(time.perf_counter())
                self.texts.append(text)

    def answer(self) -> Answer:
        if not self.finish or not self.usage:
            raise _LoadFailed("an answer was cut off")
        details = self.usage.get("prompt_tokens_details") or {}
        return Answer(
            text="".join(self.texts),
            finish=self.finish,
            prompt_tokens=self.usage["prompt_tokens"],
            cached_tokens=details.get("cached_tokens", 0),
            completion_tokens=self.usage["completion_tokens"],
            first_token_seconds=self.times[0] - self.asked,
            gaps=tuple(b - a for a, b in zip(self.times, self.times[1:], strict=False)),
            seconds=time.perf_counter() - self.asked,
        )


async def _together(works: Sequence[Any]) -> None:
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work)
