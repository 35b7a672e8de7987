"""The paths of the server: OpenAI's two that answer, its list of models, and what operators ask.

Tests: tests/engine/server/test_app.py.
"""

import hmac
import ipaddress
import logging
import re
import time
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.server.admission import Admission
from engine.server.chat import read_chat
from engine.server.completions import read_completion
from engine.server.endpoint import Endpoint
from engine.server.errors import (
    ApiError,
    invalid,
    model_not_found,
    two_lengths,
    unauthorized,
    wrong_host,
)
from engine.server.generation import Workshop

__all__ = ["make_app"]

# Probes of orchestrators bring no key.
OPEN_PATHS = ("/health",)

log = logging.getLogger(__name__)


def make_app(model: str, workshop: Workshop, admission: Admission, *, api_key: str = "") -> ASGIApp:
    """`api_key`: what every request has to bring; empty: none is asked for."""
    created = int(time.time())
    card = {"id": model, "object": "model", "created": created, "owned_by": "kvstore"}
    metrics, bridge = workshop.metrics, workshop.bridge
    metrics.watch("answers_under_way", "Answers under way or waiting.", lambda: admission.answers)
    metrics.watch("attached", "1 while the engine has its service.", lambda: bridge.is_attached)
    metrics.watch_engine(lambda: bridge.figures)
    metrics.watch("sessions", "Sessions whose tokens are kept.", lambda: len(workshop.sessions))
    metrics.watch("session_tokens", "Tokens kept for them.", lambda: workshop.sessions.token_count)

    async def list_models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [card]})

    async def get_model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != model:
            raise model_not_found(name, model)
        return JSONResponse(card)

    async def health(request: Request) -> Response:
        if bridge.is_attached:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "the kvstore service is away"}, 503)

    async def tell_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    answering = {"/v1/chat/completions": read_chat, "/v1/completions": read_completion}
    return Starlette(
        routes=[
            *(
                Route(path, Endpoint(read, model, workshop, admission), methods=["POST"])
                for path, read in answering.items()
            ),
            Route("/v1/models", list_models),
            Route("/v1/models/{name:path}", get_model),
            Route("/health", health),
            Route("/metrics", tell_metrics),
        ],
        middleware=[Middleware(_Gate, api_key=api_key)],
        exception_handlers={ApiError: _tell_api_error, HTTPException: _tell_http_error},
    )


class _Gate:
    """Who may come in, and the last net: a bug is told as an error and logged without what was asked."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._api_key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        error = self._refusal(scope)
        if error is not None:
            return await JSONResponse(error.body, error.status, error.headers)(scope, receive, send)
        has_begun = False

        async def send_on(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except Exception:
            log.exception("a request to %s has failed", scope["path"])
            if has_begun:
                raise
            error = ApiError(500, "The server has failed at this request.", kind="server_error")
            await JSONResponse(error.body, error.status)(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = dict(scope["headers"])
        if b"content-length" in headers and b"transfer-encoding" in headers:
            return two_lengths()
        if not self._api_key:
            return None if _names_loopback(headers.get(b"host", b"")) else wrong_host()
        if scope["path"] in OPEN_PATHS:
            return None
        # In constant time: how much of it was right is not told.
        given = headers.get(b"authorization", b"")
        return None if hmac.compare_digest(given, b"Bearer " + self._api_key) else unauthorized()


def _names_loopback(host: bytes) -> bool:
    """Another name is that of a page in a browser which had it resolve to this machine."""
    name = re.sub(r":[0-9]*$", "", host.decode("latin-1")).removeprefix("[").removesuffix("]")
    if name.lower() == "localhost" or not host:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def _tell_api_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return JSONResponse(error.body, error.status, error.headers)


async def _tell_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    told = invalid(f"{error.detail}: {request.method} {request.url.path}")
    return JSONResponse(told.body, error.status_code, error.headers)
