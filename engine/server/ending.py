"""How the program ends where it can't go on: one line on stderr, and a status that says whose fault it is."""

import sys
from typing import NoReturn

__all__ = ["EXIT_FAILED", "EXIT_REFUSED", "fail", "fail_for_want_of"]

EXIT_FAILED, EXIT_REFUSED = 1, 2
REMEDY = "in the clone, make install, or pip install -c constraints.txt -e '.[engine,serve]'"


def fail(message: str, status: int) -> NoReturn:
    print(f"kvstore-engine: {message}", file=sys.stderr)
    raise SystemExit(status)


def fail_for_want_of(error: ModuleNotFoundError) -> NoReturn:
    fail(f"{error.name} is not installed; remedy: {REMEDY}", EXIT_REFUSED)
