"""From a request that was read to its text: tokenise, have it computed, listen, remember.

Tests: tests/engine/server/test_chat.py, test_turns.py, test_lives.py.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from jinja2.exceptions import TemplateError

from engine.refused import TokenizerRefused
from engine.requests import Request
from engine.server.asked import Asked, Prompt, Usage
from engine.server.bridge import Bridge, Job
from engine.server.controls import cut_at_marks, mark_controls
from engine.server.errors import ApiError, invalid, not_served, time_is_over, too_large
from engine.server.fields import check_text
from engine.server.inbox import End, Inbox, News
from engine.server.limits import Limits
from engine.server.metrics import Metrics
from engine.server.room import answer_tokens
from engine.server.sessions import Piece, SessionTokens
from engine.server.speaker import Speaker
from engine.server.words import Message, Words

__all__ = ["Generation", "Spoken", "Workshop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What all requests share."""

    bridge: Bridge
    words: Words
    sessions: SessionTokens
    metrics: Metrics
    limits: Limits
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Spoken:
    """New text of an answer; `finish` says why it has ended, and is empty while it goes on."""

    answer: int
    text: str
    finish: str


@dataclass(frozen=True, slots=True)
class _Prompt:
    # Empty where it came as tokens.
    text: str
    tokens: list[int]


class Generation:
    """One request on its way. `spoken` is gone through once; the rest is known when it has ended."""

    def __init__(self, workshop: Workshop, asked: Asked) -> None:
        self._shop = workshop
        self._asked = asked
        self._prompts: list[_Prompt] = []
        self._speakers = [Speaker(workshop.words, asked.parameters.stops) for _ in range(asked.answers)]
        # By prompt: what of it was found.
        self._cached: dict[int, int] = {}
        self._begin = time.monotonic()

    @property
    def texts(self) -> list[str]:
        return [speaker.text for speaker in self._speakers]

    @property
    def finishes(self) -> list[str]:
        return [speaker.finish for speaker in self._speakers]

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=sum(len(prompt.tokens) for prompt in self._prompts),
            cached_tokens=sum(self._cached.values()),
            completion_tokens=sum(speaker.token_count for speaker in self._speakers),
        )

    async def spoken(self) -> AsyncGenerator[Spoken, None]:
        """Text as it comes. Left early, it has the rest cancelled."""
        for prompt in self._asked.prompts:
            self._prompts.append(await self._tokenise(prompt))
        job = Job(
            requests=self._requests(),
            inbox=Inbox(),
            deadline=self._begin + self._asked.parameters.seconds,
        )
        self._shop.bridge.submit(job)
        try:
            while not all(self.finishes):
                for answer, news in (await job.inbox.take()).items():
                    yield self._hear(job, answer, news)
        finally:
            self._shop.bridge.leave(job, [at for at, finish in enumerate(self.finishes) if not finish])
        self._remember()
        self._shop.metrics.note_usage(self.usage, time.monotonic() - self._begin)

    async def _tokenise(self, prompt: Prompt) -> _Prompt:
        """In a thread: a long text takes a while, and others are to be answered meanwhile."""
        if isinstance(prompt, list):
            return _Prompt("", _check_tokens(prompt, self._shop.words.vocab_size))
        if isinstance(prompt, str):
            check_text(prompt, self._asked.field)
            text = prompt
        else:
            for place, message in enumerate(prompt.messages):
                check_text(message["content"], f"{self._asked.field}[{place}].content")
            text = await self._render(prompt.messages)
        pieces = self._shop.sessions.split(self._asked.parameters.session, text)
        words = self._shop.words
        first = words.encode_prompt if isinstance(prompt, str) else words.encode
        tokens = await asyncio.to_thread(_join, pieces, first, words.encode)
        if not tokens:
            raise invalid(f"{self._asked.field} must not be empty.", self._asked.field, "invalid_value")
        return _Prompt(text, tokens)

    async def _render(self, messages: Sequence[Message]) -> str:
        try:
            return await asyncio.to_thread(self._render_marked, messages)
        except TemplateError as error:
            raise invalid(f"The model's template refuses this conversation: {error}", "messages") from error
        except TokenizerRefused:
            raise invalid(
                "This model is not made for conversations; use /v1/completions.", "messages"
            ) from None

    def _render_marked(self, messages: Sequence[Message]) -> str:
        words = self._shop.words
        return words.render(mark_controls(messages, words.control_names))

    def _requests(self) -> list[Request]:
        parameters = self._asked.parameters
        requests = []
        for place, prompt in enumerate(self._prompts):
            requests.append(
                Request(
                    id=str(place),
                    prompt=tuple(prompt.tokens),
                    max_new_tokens=self._answer_tokens(len(prompt.tokens)),
                    session=parameters.session,
                    turn=self._asked.turn if parameters.session else 0,
                    user=parameters.user,
                    priority=parameters.priority,
                    stop_ids=self._shop.words.eos_ids,
                    sampling=parameters.sampling,
                    samples=parameters.samples,
                    beams=parameters.beams,
                )
            )
        return requests

    def _answer_tokens(self, prompt_tokens: int) -> int:
        samples, beams = self._asked.parameters.samples, self._asked.parameters.beams
        return answer_tokens(
            self._asked,
            prompt_tokens,
            context_tokens=self._shop.context_tokens,
            memory=self._shop.bridge.find_answer_room(prompt_tokens, samples=samples, beams=beams),
            limits=self._shop.limits,
        )

    def _hear(self, job: Job, answer: int, news: News) -> Spoken:
        if news.end in (End.FAILED, End.LATE, End.CLOSED):
            raise _to_error(news, self._asked.parameters.seconds)
        if news.tokens and not self._cached:
            self._shop.metrics.note_first_token(time.monotonic() - self._begin)
        self._cached.setdefault(answer // self._asked.parameters.samples, news.cached_tokens)
        speaker = self._speakers[answer]
        text = speaker.hear(news.tokens, news.end)
        if speaker.was_cut:
            self._shop.bridge.cancel(job, [answer])
        return Spoken(answer, text, speaker.finish)

    def _remember(self) -> None:
        """For the session's next turn."""
        for answer, speaker in enumerate(self._speakers):
            prompt = self._prompts[answer // self._asked.parameters.samples]
            if prompt.text:
                self._shop.sessions.note(self._asked.parameters.session, prompt.text, *speaker.spoken())


def _join(
    pieces: Sequence[Piece], encode_first: Callable[[str], list[int]], encode: Callable[[str], list[int]]
) -> list[int]:
    tokens: list[int] = []
    for place, piece in enumerate(pieces):
        if isinstance(piece, list):
            tokens += piece
            continue
        first, *others = cut_at_marks(piece)
        tokens += encode(first) if place else encode_first(first)
        for other in others:
            tokens += encode(other)
    return tokens


def _check_tokens(tokens: list[int], vocab_size: int) -> list[int]:
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        raise invalid(f"A prompt's tokens must be from 0 to {vocab_size - 1}.", "prompt", "invalid_value")
    return tokens


def _to_error(news: News, seconds: float) -> ApiError:
    match news.end:
        case End.LATE:
            return time_is_over(seconds)
        case End.CLOSED:
            return not_served()
        case _:
            return too_large(news.reason)
