"""A stop comes to its end whatever hangs.

All that a stop waits for has a deadline, but a thread that is in a call of a driver or a device can't be
ended, and Python waits for its threads. So when the service begins to stop, a last deadline for all of it
begins too, after which the process ends by force. What is on disk is whole then as after any death. Tests:
tests/cuda/test_service.py.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

__all__ = ["FORCED", "run_to_the_end"]

FORCED = 1

log = logging.getLogger(__name__)


def run_to_the_end(main: Callable[[Callable[[], None]], Coroutine[Any, Any, int]], seconds: float) -> int:
    """Runs `main` and returns its status. It is given what to call when it begins to stop, once or more
    often; so many seconds later the process ends, with status 1, if it has not ended by then."""
    last = threading.Timer(seconds, _end, (seconds,))
    last.daemon = True

    def stopping() -> None:
        # A second time: it runs already.
        with suppress(RuntimeError):
            last.start()

    try:
        return asyncio.run(main(stopping))
    finally:
        last.cancel()


def _end(seconds: float) -> None:
    log.critical("not ended %g seconds after the stop: something hangs; the process ends by force", seconds)
    logging.shutdown()
    os._exit(FORCED)
