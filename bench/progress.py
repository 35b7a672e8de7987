"""A sign of life for those who read no terminal: rows may be minutes apart."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["signs_of_life"]

SECONDS_BETWEEN = 15.0


@contextmanager
def signs_of_life(name: str, seconds_between: float = SECONDS_BETWEEN) -> Iterator[None]:
    """Where stderr is no terminal, a line there now and then.

    Between them its thread sleeps: what is measured does not feel it.
    """
    if sys.stderr.isatty():
        yield
        return
    begin = time.monotonic()
    has_ended = threading.Event()

    def tell() -> None:
        while not has_ended.wait(seconds_between):
            seconds = time.monotonic() - begin
            print(f"{name}: still measuring, after {seconds:.0f} s", file=sys.stderr, flush=True)

    thread = threading.Thread(target=tell, name="signs-of-life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
