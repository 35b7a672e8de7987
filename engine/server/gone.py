"""Work for a client, for as long as the client is there."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

__all__ = ["ClientGone", "until_gone"]

Result = TypeVar("Result")


class ClientGone(Exception):
    """It has closed its connection, or was cut off."""


async def until_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The work's result. When the client goes first, the work is cancelled and has ended before this raises.

    The request's body must have been read: what `receive` tells then is that the client has gone.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_until_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return await task
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
