"""Sizes of memory and disk by the flags that name them, and what is too little or too much for them.

The service checks its sizes itself; they are checked here as well, because it is started when all else has
been loaded. Tests: tests/engine/server/test_kv_choice.py.
"""

import os
from dataclasses import dataclass

from engine.server.flags import FlagRefused
from kvstore.sizes import SizeInvalid, parse_size

__all__ = ["Size", "check_machine", "disk_size", "memory_size"]

# As of the service: a frame is whole pages, and there is an index beside the blocks on disk.
MEMORY_BYTES_MIN = 4096
DISK_BYTES_MIN = 4 << 20


@dataclass(frozen=True, slots=True)
class Size:
    """As it was typed, and in bytes; 0: not known yet."""

    flag: str
    text: str
    bytes: int

    def refuse(self, why: str, remedy: str) -> FlagRefused:
        return FlagRefused(self.flag, self.text, why, remedy)


def memory_size(flag: str, text: str, *, takes_share: bool = False) -> Size:
    """A share is one of this machine's memory."""
    size = Size(flag, text, _parse(flag, text, _machine_bytes() if takes_share else None))
    if size.bytes < MEMORY_BYTES_MIN:
        raise size.refuse("no room for a single block", f"at least {MEMORY_BYTES_MIN} bytes, like 1GiB")
    return size


def disk_size(flag: str, text: str) -> Size:
    size = Size(flag, text, _parse(flag, text, None))
    if size.bytes < DISK_BYTES_MIN:
        raise size.refuse("too small for a disk tier", f"at least {DISK_BYTES_MIN} bytes, like 4GiB")
    return size


def check_machine(size: Size, beside: Size | None = None) -> None:
    """Whether its memory is enough for both together."""
    there_is = _machine_bytes()
    if size.bytes + (beside.bytes if beside else 0) > there_is:
        why = f"this machine has {there_is} bytes"
        why += f", of which {beside.flag} takes {beside.bytes}" if beside else ""
        raise size.refuse(why, "ask for less")


def _parse(flag: str, text: str, whole: int | None) -> int:
    try:
        return parse_size(text, whole_bytes=whole)
    except SizeInvalid as error:
        raise FlagRefused(flag, text, error.message, error.remedy) from None


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
