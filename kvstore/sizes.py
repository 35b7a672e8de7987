"""Sizes as people write them on a command line, of the service's programs and the engine's: bytes, units,
shares of what there is.

It imports nothing of kvstore, so that both may import it: an engine knows the service by its client alone.
Each tells what is no size in its own form.
"""

import re

__all__ = ["SizeInvalid", "parse_size"]

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
SIZE_REMEDY = "write bytes or a size with its unit: 512MiB, 2GiB"
UNITS_REMEDY = "one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB"
SIZE_MAX = 2**60


class SizeInvalid(ValueError):
    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def parse_size(text: str, *, whole_bytes: int | None = None) -> int:
    """Bytes, or with `whole_bytes` a share of them like "25%". Raises SizeInvalid."""
    remedy = SIZE_REMEDY + (", or a share of the memory: 25%" if whole_bytes is not None else "")
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise SizeInvalid("not a size", remedy)
    number, unit = float(match["number"]), match["unit"]
    if unit == "%":
        if whole_bytes is None:
            raise SizeInvalid("takes bytes only, no share", remedy)
        if number > 100:
            raise SizeInvalid("more than all of it", "at most 100%")
        return int(whole_bytes * number / 100)
    if unit.upper() not in UNITS:
        raise SizeInvalid(f"unknown unit {unit}", UNITS_REMEDY)
    size = number * UNITS[unit.upper()]
    # Before it is made whole: so many digits are infinite.
    if size > SIZE_MAX:
        raise SizeInvalid("beyond all bounds", remedy)
    return int(size)
