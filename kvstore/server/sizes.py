"""Sizes as people write them: bytes, units, shares of the memory there is."""

import re

from kvstore.core.errors import ConfigInvalid

__all__ = ["format_bytes", "parse_share", "parse_size"]

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
SIZE = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?) ?(?P<unit>[A-Za-z]*|%)")
SHARE = re.compile(r"(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+) ?(?P<percent>%?)")
SIZE_REMEDY = "write bytes or a size with its unit: 512MiB, 2GiB"
SIZE_MAX = 2**60


def parse_size(text: str, *, flag: str, whole_bytes: int | None = None) -> int:
    """Bytes, or with `whole_bytes` a share of them like "25%"."""
    remedy = SIZE_REMEDY + (", or a share of the memory: 25%" if whole_bytes is not None else "")
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigInvalid("not a size", field=flag, value=text, remedy=remedy)
    number, unit = float(match["number"]), match["unit"]
    if unit == "%":
        if whole_bytes is None:
            raise ConfigInvalid("takes bytes only, no share", field=flag, value=text, remedy=remedy)
        if number > 100:
            raise ConfigInvalid("more than all of it", field=flag, value=text, remedy="at most 100%")
        return int(whole_bytes * number / 100)
    if unit.upper() not in UNITS:
        known = ", ".join(name for name in ("B", "KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "TB"))
        raise ConfigInvalid(f"unknown unit {unit}", field=flag, value=text, remedy=f"one of {known}")
    size = number * UNITS[unit.upper()]
    # Before it is made whole: so many digits are infinite.
    if size > SIZE_MAX:
        raise ConfigInvalid("beyond all bounds", field=flag, value=text, remedy=remedy)
    return int(size)


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
