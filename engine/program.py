"""`kvstore-engine`: what it is made of is loaded here, and told by name where it is not installed."""

import sys

__all__ = ["main"]

REMEDY = "in the clone, make install, or pip install -c constraints.txt -e '.[engine,serve]'"


def main() -> None:
    try:
        from engine.server.command import main as run
    except ModuleNotFoundError as error:
        print(f"kvstore-engine: {error.name} is not installed; remedy: {REMEDY}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(1)
    run()
