"""What tests of the client look at: its threads and descriptors, a fake service in a process of its own."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvstore.client import Layout
from tests.client.fake import BLOCK_BYTES, BLOCK_TOKENS

__all__ = ["LOST_SECONDS", "fake_process", "keep_alive_threads", "layout", "senders", "wait_until"]

LOST_SECONDS = 2.0  # The contract's bound.
WAIT_SECONDS = 60.0  # Nothing takes so long.


def layout(ranks: int = 1) -> Layout:
    return Layout(block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, ranks=ranks, fingerprint=bytes(32))


def senders() -> list[threading.Thread]:
    """gRPC's, one a stream: they wait in our code for the next step."""
    return [thread for thread in threading.enumerate() if thread.name == "kvstore-steps"]


def keep_alive_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kvstore-keep-alive"]


def wait_until(holds) -> bool:
    end = time.monotonic() + WAIT_SECONDS
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(holds())


@contextmanager
def fake_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.client.fake", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
