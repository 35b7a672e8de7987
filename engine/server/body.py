"""A request's body, within its bounds."""

import asyncio

from starlette.requests import Request

from engine.server.errors import ApiError, invalid
from engine.server.gone import ClientGone
from engine.server.limits import Limits

__all__ = ["read_body"]


async def read_body(request: Request, limits: Limits) -> bytes:
    """Refuses a body that says or proves to be too long, or takes too long to come.

    Only JSON by its own name is taken: a page in a browser can't send that to this machine unasked.
    """
    try:
        return await _read_checked(request, limits)
    except ApiError as error:
        # What is still to come is not read.
        error.headers["Connection"] = "close"
        raise


async def _read_checked(request: Request, limits: Limits) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise invalid("The Content-Type must be application/json.")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        told = f"A body of Content-Encoding {encoding[:32]} is not taken; send it as it is."
        raise ApiError(415, told, code="unsupported_encoding")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limits.body_bytes:
        raise _too_long(limits)
    try:
        async with asyncio.timeout(limits.receive_seconds):
            return await _read(request, limits)
    except TimeoutError:
        raise ApiError(408, "The body did not come in time.", code="request_timeout") from None


async def _read(request: Request, limits: Limits) -> bytes:
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limits.body_bytes:
            raise _too_long(limits)
        if not message.get("more_body", False):
            return bytes(body)


def _too_long(limits: Limits) -> ApiError:
    return ApiError(413, f"The body may have at most {limits.body_bytes} bytes.", code="body_too_long")
