"""One endpoint that answers: reads the request, has it computed, and tells it whole or as a stream of events.

A stream's status is sent with its first token, so that what is refused or late before that is an HTTP error;
what goes wrong later is told as an event. Tests: tests/engine/server/test_app.py, test_chat.py.
"""

import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from engine.server.admission import Admission
from engine.server.asked import Asked
from engine.server.body import read_body
from engine.server.errors import ApiError, model_not_found
from engine.server.fields import Fields
from engine.server.generation import Generation, Spoken, Workshop
from engine.server.gone import ClientGone, until_gone
from engine.server.limits import Limits

__all__ = ["GONE", "Endpoint"]

# Told to nobody, but counted.
GONE = 499
EVENT_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]

log = logging.getLogger(__name__)


class Endpoint:
    """An ASGI application for one path."""

    def __init__(
        self, read: Callable[[Fields, Limits], Asked], model: str, workshop: Workshop, admission: Admission
    ) -> None:
        self._read = read
        self._model = model
        self._shop = workshop
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        status = GONE
        try:
            fields = Fields.parse(await read_body(request, self._shop.limits))
            asked = self._read(fields, self._shop.limits)
            if asked.parameters.model != self._model:
                raise model_not_found(asked.parameters.model, self._model)
            with self._admission.admit(asked.sequences):
                generation = Generation(self._shop, asked)
                status = await until_gone(receive, self._answer(scope, receive, send, asked, generation))
        except ClientGone:
            pass
        except ApiError as error:
            status = error.status
            await JSONResponse(error.body, status, error.headers)(scope, receive, send)
        finally:
            self._shop.metrics.note_request(scope["path"], status)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, asked: Asked, generation: Generation
    ) -> int:
        async with aclosing(generation.spoken()) as spoken:
            if asked.parameters.is_streamed:
                return await self._stream(send, asked, generation, spoken)
            async for _ in spoken:
                pass
        body = asked.shape.whole(generation.texts, generation.finishes, generation.usage)
        await JSONResponse(body)(scope, receive, send)
        return 200

    async def _stream(
        self, send: Send, asked: Asked, generation: Generation, spoken: AsyncGenerator[Spoken, None]
    ) -> int:
        """A slow reader gets larger pieces: `send` waits for it, and tokens are put together meanwhile."""
        first = await anext(spoken)
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
        begun: set[int] = set()
        status = 200
        try:
            await _send_events(send, _events_of(asked, first, begun))
            async for each in spoken:
                await _send_events(send, _events_of(asked, each, begun))
            end = [asked.shape.usage(generation.usage)] if asked.parameters.tells_usage else []
            await _send_events(send, end, b"data: [DONE]\n\n")
        except ApiError as error:
            status = error.status
            await _send_events(send, [error.body])
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return status


def _events_of(asked: Asked, spoken: Spoken, begun: set[int]) -> list[dict[str, Any]]:
    shape, answer = asked.shape, spoken.answer
    events = []
    if answer not in begun:
        begun.add(answer)
        events += [shape.first(answer)]
    if spoken.text:
        events += [shape.piece(answer, spoken.text)]
    if spoken.finish:
        events += [shape.last(answer, spoken.finish)]
    return [event for event in events if event is not None]


async def _send_events(send: Send, events: list[dict[str, Any]], tail: bytes = b"") -> None:
    lines = [b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n" for event in events]
    if body := b"".join([*lines, tail]):
        await send({"type": "http.response.body", "body": body, "more_body": True})
