"""Writes the table of docs/metrics.md out of kvstore/server/metrics_list.py; with --check, only looks."""

import argparse
import re
import sys
from pathlib import Path

from kvstore.server.metrics_list import METRICS

__all__ = ["render", "table"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
MARKED = re.compile(r"(<!-- metrics: begin -->\n).*?(<!-- metrics: end -->)", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the table of metrics.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if it is out of date")
    check_only: bool = parser.parse_args().check
    text = PAGE.read_text()
    wanted = render(text)
    if text == wanted:
        return 0
    if check_only:
        print(f"{PAGE.name} is out of date: run `python tools/metrics.py`")
        return 1
    PAGE.write_text(wanted)
    print(f"wrote {PAGE.name}")
    return 0


def render(text: str) -> str:
    """The page with the table as it is now."""
    return MARKED.sub(lambda match: match[1] + table() + match[2], text)


def table() -> str:
    rows = ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
