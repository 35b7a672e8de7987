"""`kvstore-engine`: what it is made of is loaded here, and told by name where it is not installed."""

import sys

from engine.server.ending import fail_for_want_of

__all__ = ["main"]


def main() -> None:
    try:
        from engine.server.command import main as run
    except ModuleNotFoundError as error:
        fail_for_want_of(error)
    except KeyboardInterrupt:
        sys.exit(1)
    run()
