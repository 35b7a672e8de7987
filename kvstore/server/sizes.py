"""Sizes and shares as people write them, refused by the flag's name; and sizes for people."""

import re

import kvstore.sizes
from kvstore.core.errors import ConfigInvalid
from kvstore.sizes import SizeInvalid

__all__ = ["format_bytes", "parse_share", "parse_size"]

SHARE = re.compile(r"(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+) ?(?P<percent>%?)")


def parse_size(text: str, *, flag: str, whole_bytes: int | None = None) -> int:
    """Bytes, or with `whole_bytes` a share of them like "25%"."""
    try:
        return kvstore.sizes.parse_size(text, whole_bytes=whole_bytes)
    except SizeInvalid as error:
        raise ConfigInvalid(error.message, field=flag, value=text, remedy=error.remedy) from None


def parse_share(text: str, *, flag: str, value: str = "") -> float:
    """Above 0, at most 1, from `90%` or `0.9`. `value`: all that was typed, where `text` is a part of it."""
    match = SHARE.fullmatch(text.strip())
    share = float(match["number"]) / (100 if match["percent"] else 1) if match else 0.0
    if not 0 < share <= 1:
        raise ConfigInvalid("not a share", field=flag, value=value or text, remedy="like 90%, or 0.9")
    return share


def format_bytes(size: int) -> str:
    """For people: 1.5 GiB."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.4g} {unit}"
