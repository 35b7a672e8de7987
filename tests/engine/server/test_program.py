"""`kvstore-engine` around its command: help, version, and what is loaded before a flag is refused."""

import subprocess
import sys

import pytest

from kvstore import __version__

HEAVY = ("torch", "numpy", "grpc", "uvicorn", "starlette", "tokenizers")


def run(*words: str) -> tuple[int, str, str, set[str]]:
    """Status, what was printed, and which heavy packages are loaded when it ends."""
    code = (
        "import sys\n"
        "from engine.program import main\n"
        f"sys.argv = ['kvstore-engine', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    status = end.code\n"
        f"print('loaded', status or 0, *(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    *printed, last = done.stdout.splitlines()
    word, status, *names = last.split()
    assert word == "loaded", done.stderr
    return int(status), "\n".join(printed), done.stderr, set(names)


@pytest.mark.parametrize("words", [("--help",), ("serve", "-h")])
def test_help_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    status, printed, _, loaded = run(*words)
    assert (status, loaded) == (0, set())
    assert "Usage: " in printed


def test_version() -> None:
    assert run("--version") == (0, f"kvstore-engine {__version__}", "", set())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--kv", "paged", "--kv-memory", "1"), "--kv-memory 1: no room"),
        (("--own-service", "--gpu", "0"), "--gpu 0: no room"),
        (("--own-service", "--folder", "/proc/zz"), "--folder /proc/zz: it can't be made: No such file"),
        (("--model", "/none"), "--model /none: there is no such model"),
        (("--device", "gpu"), "--device gpu: there is no such device"),
    ],
)
def test_a_wrong_flag_is_refused_before_anything_heavy_is_loaded(words: tuple[str, ...], told: str) -> None:
    status, printed, errors, loaded = run("serve", "--port", "0", *words)
    assert (status, printed, loaded) == (2, "", set())
    [line] = errors.splitlines()
    assert line.startswith(f"kvstore-engine: {told}")
