"""What holds for every test: nothing is left running.

Warnings are errors (pyproject.toml), so a leaked file or socket fails its test. Threads and processes are
looked at here, once a module. Fixtures and helpers of one package stand in that package's own test folder.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import settings

LEAVE_SECONDS = 20.0  # What was told to end may take this long to be gone, on a busy machine.

# Machines that run tests are shared and slow: time says nothing about an example. The rest is Hypothesis's
# own default, which under CI=true draws the same examples on every run.
settings.register_profile("kvstore", deadline=None)
settings.load_profile("kvstore")
# For `make soak`: `pytest --hypothesis-profile=soak`.
settings.register_profile("soak", deadline=None, max_examples=300, stateful_step_count=50, derandomize=False)


# Where the tests are started in the background, SIGINT is ignored, and it would be by all processes that they
# start; several of these have to end by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scenarios",
        action="store_true",
        help="write what is seen into tests/scenarios/*.txt, to be reviewed as a diff",
    )
    # `make crash` asks for many; a sample of each runs with all tests.
    parser.addoption("--crash-points", type=int, default=6, help="processes that are killed with SIGKILL")
    parser.addoption("--power-losses", type=int, default=120, help="losses of power that are replayed")
    parser.addoption("--fault-seeds", type=int, default=2, help="devices that fail, each in its own way")
    # `make soak` asks for all of them; a spread runs with all tests.
    parser.addoption("--kernel-grid", action="store_true", help="interpret kernels at all shapes")


@pytest.fixture(scope="module", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fails a module that leaves a non-daemon thread or a child process behind.

    It is the first fixture of its module to be made and the last to be taken down, so the module's own have
    ended by then. Fixtures of the whole session are made before it and don't count.
    """
    before = find_running()
    yield
    deadline = time.monotonic() + LEAVE_SECONDS
    while (left := find_running() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    if left:
        pytest.fail("left running: " + ", ".join(sorted(map(repr, left))), pytrace=False)


def find_running() -> set[threading.Thread | psutil.Process]:
    threads = {thread for thread in threading.enumerate() if not thread.daemon}
    children = psutil.Process(os.getpid()).children(recursive=True)
    return {*threads, *(child for child in children if not is_resource_tracker(child))}


def is_resource_tracker(process: psutil.Process) -> bool:
    """Python's multiprocessing starts one such helper and keeps it to the end, rightly."""
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False
