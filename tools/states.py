"""Draws the states of a sequence into ARCHITECTURE.md from the table that the core goes by.

`--check` fails where the drawing is out of date.
"""

import sys
from pathlib import Path

from kvstore.core.sequences import MOVES

__all__ = ["drawn", "main"]

PAGE = Path(__file__).parent.parent / "ARCHITECTURE.md"
BEGIN, END = "<!-- states: begin -->\n", "<!-- states: end -->"


def drawn() -> str:
    moves = [
        f"    {before.name} --> {after.name}: {move.name.lower()}" for (before, move), after in MOVES.items()
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> DROPPED: new", *moves, "```", ""])


def main() -> int:
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    wanted = head + BEGIN + drawn() + END + rest.split(END)[1]
    if page == wanted:
        return 0
    if "--check" in sys.argv:
        print("ARCHITECTURE.md: the drawing of states is out of date; run `make format`", file=sys.stderr)
        return 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
