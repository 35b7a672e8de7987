"""Figures of a decision as people read them, and which of them have been told so far."""

import math
from collections.abc import Iterator, Mapping

from google.protobuf.timestamp_pb2 import Timestamp

from kvstore.cli.texts import counted

__all__ = ["Inputs", "moment", "money", "seconds", "share", "size", "span", "times"]

RATE, SECONDS = "_bytes_per_second", "_seconds"


class Inputs:
    """By name. What nobody has asked for is left, and told by its name alone."""

    def __init__(self, inputs: Mapping[str, float]) -> None:
        self._inputs = inputs
        self._asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._inputs

    def __getitem__(self, name: str) -> float:
        """0 where there is no such."""
        self._asked.add(name)
        return self._inputs.get(name, 0.0)

    def count(self, name: str) -> int:
        return round(self[name])

    def rest(self) -> Iterator[str]:
        """Name and value of each that was not asked for, in the order of their names."""
        for name in sorted(set(self._inputs) - self._asked):
            yield f"{_words(name)} {_value(name, self._inputs[name])}"

    def blocks(self, count: int) -> str:
        """So many, and how large they are."""
        each = self["block_bytes"]
        return (
            f"{counted(count, 'block')} ({size(count * each)})" if each and count else counted(count, "block")
        )

    def link(self, source: str, target: str) -> str:
        """What moving blocks from one tier to the next costs; nothing, where none move."""
        name = f"{source}_to_{target}"
        blocks, price = self.count(f"{name}_blocks"), self[f"{name}_price"]
        ahead, fixed = self.count(f"{name}_blocks_ahead"), self[f"{name}_fixed_seconds"]
        rate, total = self[f"{name}{RATE}"], self[f"{name}_seconds"]
        if not blocks:
            return ""
        parts = [f"{self.blocks(blocks)} at {_rate(rate)}"]
        if price > 1:
            parts[0] += f" {times(price, 'link')}"
        if ahead:
            parts.append(f"{counted(ahead, 'block')} that wait before them")
        if fixed:
            parts.append(f"{seconds(fixed)} to begin")
        return f"{source.upper()} to {target.upper()} {' + '.join(parts)} = {seconds(total)}"


def moment(time: Timestamp) -> str:
    """To the millisecond, UTC."""
    return f"{time.ToDatetime():%Y-%m-%d %H:%M:%S.%f}"[:-3]


def money(unpriced: float, price: float) -> str:
    """Seconds, and what they count for under load."""
    if price == 1 or not unpriced:
        return seconds(unpriced)
    return f"{seconds(unpriced)} {times(price, 'GPU')} = {seconds(unpriced * price)}"


def times(price: float, of: str) -> str:
    """The price of a second of what is busy for 1 - 1/price of the time: a factor, and no time."""
    return f"x {price:.3g} ({of} busy {share(1 - 1 / price)})"


def share(part: float) -> str:
    return f"{part:.0%}"


def seconds(value: float) -> str:
    if math.isinf(value):
        return "forever"
    for unit, each in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= each or value == 0:
            return f"{value / each:.3g} {unit}" if value < 1000 * each else f"{value / each:,.0f} {unit}"
    return f"{value / 1e-9:.3g} ns"


def span(value: float) -> str:
    """A long time, roughly."""
    for unit, each in (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if value >= 2 * each:
            return f"{value / each:,.3g} {unit}"
    return seconds(value)


def size(count: float) -> str:
    for unit, each in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= each:
            return f"{count / each:.3g} {unit}"
    return f"{count:.0f} B"


def _rate(value: float) -> str:
    return f"{value / 1e9:.3g} GB/s" if value >= 1e9 else f"{value / 1e6:.3g} MB/s"


def _words(name: str) -> str:
    for unit in (RATE, SECONDS):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def _value(name: str, value: float) -> str:
    if name.endswith(RATE):
        return _rate(value)
    return seconds(value) if name.endswith(SECONDS) else f"{value:.6g}"
