"""Clients who stay and clients who don't: what each does by its seed, and what was wrong in what it heard."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.storm.catalogue import CHAT, Ask, Talk
from bench.storm.telling import Told, read_told
from bench.storm.wire import Line, NothingCame

__all__ = ["WAYS", "Findings", "Setting", "Visitor"]

OVERLOADED = "rate_limit_exceeded"
PAUSE_SECONDS = 0.2
# Of answers that nobody waits for: if they are not ended when their client goes, that shows.
LONG_TOKENS = 1000
# What visitors do, by the methods of `Visitor`, and how often.
WAYS = {
    "stay": 40,
    "talk": 10,
    "read_slowly": 4,
    "go_before_the_first_token": 10,
    "go_in_the_middle": 12,
    "send_half_a_body": 5,
    "ask_for_too_little_time": 9,
    "ask_for_too_much": 5,
    "ask_for_nonsense": 5,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all visitors share."""

    url: str
    model: str
    asks: Sequence[Ask]
    talks: Sequence[Talk]
    # Characters of a prompt that memory can never hold, and of one that the context can't.
    characters_beyond_memory: int
    characters_beyond_context: int
    body_bytes: int
    # How long a deadline is that is too short.
    short_seconds: tuple[float, ...] = (0.001, 0.01, 0.05, 0.2)


@dataclass(slots=True)
class Findings:
    """What was wrong, in words; and how often what was done and seen."""

    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class Visitor:
    """Asks and is told, one visit after the other; a connection that is in order serves the next one too."""

    def __init__(self, setting: Setting, number: int, seed: int, findings: Findings) -> None:
        self._setting = setting
        self._name = f"visitor {number} of seed {seed}"
        self._draw = random.Random(f"{seed},{number}")
        # Apart: how often one is refused is no matter of the seed, and what it does next is.
        self._pauses = random.Random(f"{seed},{number},pauses")
        self._findings = findings
        self._line: Line | None = None
        self._talks = 0

    async def visit(self) -> None:
        [way] = self._draw.choices(list(WAYS), list(WAYS.values()))
        self._findings.counts[way] += 1
        try:
            await getattr(self, way)()
        except (OSError, NothingCame, ValueError, KeyError) as error:
            self._fault(f"{way}: {type(error).__name__}: {error}")
            await self.leave(is_cut=True)

    async def leave(self, *, is_cut: bool = False) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close(is_cut=is_cut)

    # ------------------------------------------------------------------------------ who stays

    async def stay(self) -> None:
        await self._until_answered(self._draw.choice(self._setting.asks))

    async def read_slowly(self) -> None:
        ask = self._draw.choice([ask for ask in self._setting.asks if not ask.is_search])
        await self.leave()
        self._line = await Line.open(self._setting.url, is_slow=True)
        await self._until_answered(ask, is_streamed=True)
        await self.leave()

    async def talk(self) -> None:
        """All turns in order; one that breaks off in between is asked again, as people do."""
        talk = self._draw.choice(self._setting.talks)
        self._talks += 1
        session = f"{self._name}, talk {self._talks}"
        for turn in range(len(talk.says)):
            ask = talk.ask(turn, session)
            if self._draw.random() < 0.2:
                await self._break_off(ask)
            await self._until_answered(ask)

    async def _until_answered(self, ask: Ask, *, is_streamed: bool | None = None) -> None:
        if is_streamed is None:
            is_streamed = not ask.is_search and self._draw.random() < 0.5
        while (told := await self._ask(ask, is_streamed=is_streamed)).error == OVERLOADED:
            self._findings.counts["overloaded"] += 1
            await asyncio.sleep(PAUSE_SECONDS * self._pauses.uniform(0.5, 2))
        if told.status != 200 or told.error or not told.is_whole:
            self._fault(f"who stayed got {told.status} {told.error}, {told.texts}, for {_shown(ask)}")
        self._findings.counts["answered"] += 1

    # ------------------------------------------------------------------------------- who goes

    async def go_before_the_first_token(self) -> None:
        line = await self._open_line()
        ask = self._draw.choice(self._setting.asks)
        await line.send(ask.path, {**_long(ask).body, "stream": not ask.is_search})
        await asyncio.sleep(self._draw.choice([0, 0.001, 0.01, 0.05]))
        await self.leave(is_cut=self._draw.random() < 0.5)

    async def go_in_the_middle(self) -> None:
        ask = self._draw.choice([ask for ask in self._setting.asks if not ask.is_search])
        await self._break_off(_long(ask) if self._draw.random() < 0.5 else ask)

    async def _break_off(self, ask: Ask) -> None:
        await self._ask(ask, is_streamed=True, events_max=self._draw.choice([1, 2, 5, 20]))
        await self.leave(is_cut=self._draw.random() < 0.5)

    async def send_half_a_body(self) -> None:
        line = await self._open_line()
        ask = self._draw.choice(self._setting.asks)
        await line.send(ask.path, ask.body, share=self._draw.uniform(0.0, 0.99))
        await asyncio.sleep(self._draw.choice([0, 0.01]))
        await self.leave(is_cut=self._draw.random() < 0.5)

    # ----------------------------------------------------------------- what can't be answered

    async def ask_for_too_little_time(self) -> None:
        ask = self._draw.choice(self._setting.asks)
        seconds = self._draw.choice(self._setting.short_seconds)
        is_streamed = not ask.is_search and self._draw.random() < 0.5
        told = await self._ask(ask, is_streamed=is_streamed, seconds=seconds)
        if told.error == "deadline_exceeded":
            self._findings.counts["late"] += 1
        elif told.error not in ("", OVERLOADED):
            self._fault(f"a short time has ended in {told.status} {told.error}")

    async def ask_for_too_much(self) -> None:
        setting = self._setting
        characters, code = self._draw.choice(
            [
                (setting.characters_beyond_memory, "memory_exceeded"),
                (setting.characters_beyond_context, "context_length_exceeded"),
                (setting.body_bytes, "body_too_long"),
            ]
        )
        messages = [{"role": "user", "content": "x" * characters}]
        await self._refused(CHAT, {"model": setting.model, "max_tokens": 5, "messages": messages}, code)

    async def ask_for_nonsense(self) -> None:
        messages = [{"role": "user", "content": "hello"}]
        nonsense: list[tuple[dict[str, Any] | bytes, str]] = [
            ({"model": "huge", "messages": messages}, "model_not_found"),
            ({"model": self._setting.model, "messages": []}, "invalid_value"),
            ({"model": self._setting.model, "messages": messages, "n": 0}, "invalid_value"),
            ({"model": self._setting.model, "messages": messages, "tool": 1}, "unknown_parameter"),
            (b'{"model":', "invalid_request_error"),
            (b"[" * 100_000, "invalid_request_error"),
        ]
        body, code = self._draw.choice(nonsense)
        await self._refused(CHAT, body, code)

    async def _refused(self, path: str, body: dict[str, Any] | bytes, code: str) -> None:
        line, told = await self._open_line(), Told()
        try:
            await line.send(path, body)
            await read_told(line, told)
        except ConnectionError:
            # A body that is not read to its end is cut off, with the answer still under way.
            if code != "body_too_long":
                raise
            await self.leave()
            return
        if told.error not in (code, OVERLOADED):
            self._fault(f"what is refused with {code} has got {told.status} {told.error}")
        if not line.can_go_on:
            await self.leave()

    # ------------------------------------------------------------------------------- to ask

    async def _ask(
        self, ask: Ask, *, is_streamed: bool, events_max: int = 1 << 30, seconds: float | None = None
    ) -> Told:
        line, told = await self._open_line(), Told()
        more = {} if seconds is None else {"timeout_seconds": seconds}
        stream = {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}
        await line.send(ask.path, {**ask.body, **stream, **more})
        await read_told(line, told, events_max=events_max)
        if told.status == 200 and ask.right is not None and (fault := ask.right.fault(told)):
            self._fault(f"{fault}; {_shown(ask)}{', streamed' if is_streamed else ''}")
        if not line.can_go_on:
            await self.leave()
        return told

    async def _open_line(self) -> Line:
        if self._line is None:
            self._line = await Line.open(self._setting.url)
        return self._line

    def _fault(self, text: str) -> None:
        self._findings.faults.append(f"{self._name}: {text}")


def _long(ask: Ask) -> Ask:
    return ask if ask.is_search else Ask(path=ask.path, body={**ask.body, "max_tokens": LONG_TOKENS})


def _shown(ask: Ask) -> str:
    return f"asked {ask.path} {ask.body}"[:1500]
