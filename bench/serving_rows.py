"""What a load on a set-up came to, as rows and as a line of the table."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bench.report import Row, make_row
from bench.serving_measured import Measured, percentile

__all__ = ["COLUMNS", "columns", "rows_of", "table"]

PERCENTS = (50, 95, 99)


class Column(NamedTuple):
    name: str
    unit: str
    # As the table has them.
    short: str


COLUMNS = (
    Column("requests at once", "", "at once"),
    Column("KV memory holding live tokens", "%", "live %"),
    Column("prefix hit rate", "%", "hits %"),
    Column("tokens computed over asked for", "%", "comp %"),
    *(Column(f"time to the first token, p{percent}", "s", f"ttft{percent}") for percent in PERCENTS),
    *(Column(f"time per token, p{percent}", "ms", f"tpot{percent}") for percent in PERCENTS),
    Column("tokens a second", "", "tok/s"),
    Column("preemptions", "", "preempt"),
    Column("bytes swapped", "MB", "MB swap"),
)


def columns(measured: Measured) -> list[float]:
    """In the order of COLUMNS."""
    return [
        measured.at_once,
        100 * measured.live_share,
        100 * measured.hit_rate,
        100 * measured.computed_share,
        *(percentile(measured.first_token_seconds, percent) for percent in PERCENTS),
        *(1e3 * percentile(measured.gaps, percent) for percent in PERCENTS),
        measured.tokens_per_second,
        measured.preemptions,
        measured.bytes_swapped / 1e6,
    ]


def rows_of(load: str, setup: str, measured: Measured) -> Iterator[Row]:
    for column, value in zip(COLUMNS, columns(measured), strict=True):
        if not math.isnan(value):
            yield make_row(f"{load}, {setup}: {column.name}", column.unit, [value])


def table(load: str, by_setup: Mapping[str, Measured]) -> str:
    """A line a set-up; times in s (ttft) and ms (tpot)."""
    head = f"{'':<12}" + "".join(f"{column.short:>9}" for column in COLUMNS)
    lines = [
        f"{setup:<12}" + "".join(f"{value:>9.3g}" if value < 1e3 else f"{value:>9.0f}" for value in found)
        for setup, found in ((setup, columns(measured)) for setup, measured in by_setup.items())
    ]
    return "\n".join([load, head, *lines])
