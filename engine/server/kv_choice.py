"""`--kv` and what goes with it: where KV is kept, how much memory there is for it, which service is started.

What makes no sense together is refused by the flag's name. Tests: tests/engine/server/test_kv_choice.py.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from engine.kv.set_ups import BLOCK_TOKENS, SET_UPS, SetUp

__all__ = ["KVChoice", "KVRefused", "choose_kv"]

SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?i?B?)", re.IGNORECASE)
POWERS = " KMGT"
DEFAULTS = {"--gpu": "1GiB", "--cpu": "1GiB", "--disk-bytes": "4GiB"}


class KVRefused(Exception):
    """Flags that can't be, or not together; the message names the first, and says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVChoice:
    set_up: SetUp
    # Of the pool in this process; 0 where a service has it.
    memory_bytes: int
    block_tokens: int
    # Of each request; 0: the default, which depends on the model.
    reserve_tokens: int
    # Of `kvstore serve`, where one is started.
    service_flags: Sequence[str]


def choose_kv(
    name: str,
    *,
    memory: str | None,
    block_tokens: int,
    reserve_tokens: int | None,
    device: str,
    kvstore: str,
    is_own: bool,
    tiers: Mapping[str, str | None],
) -> KVChoice:
    """`tiers`: --gpu, --cpu, --disk-bytes and --folder as they were typed; None: not at all.

    Raises KVRefused.
    """
    set_up = SET_UPS.get(name)
    if set_up is None:
        _refuse("--kv", name, f"there is no such set-up; remedy: one of {', '.join(SET_UPS)}")
    if block_tokens not in BLOCK_TOKENS:
        _refuse(
            "--block-tokens",
            block_tokens,
            f"no size of a block; remedy: one of {', '.join(map(str, BLOCK_TOKENS))}",
        )
    if reserve_tokens is not None and not set_up.is_contiguous:
        _refuse("--reserve-tokens", reserve_tokens, f"--kv {name} reserves nothing; remedy: --kv contiguous")
    memory_bytes = _parse_size(memory or DEFAULTS["--gpu"])
    flags: list[str] = []
    if set_up.has_service:
        memory_bytes = _check_service(set_up, memory, memory_bytes, is_own, tiers)
        flags = _service_flags(set_up, memory_bytes, tiers)
    else:
        _check_own_memory(set_up, memory_bytes, device, kvstore, tiers)
    return KVChoice(
        set_up=set_up,
        memory_bytes=0 if set_up.has_service else memory_bytes,
        block_tokens=block_tokens,
        # Whole blocks, as with all others.
        reserve_tokens=-(-(reserve_tokens or 0) // block_tokens) * block_tokens,
        service_flags=flags,
    )


def _check_service(
    set_up: SetUp, memory: str | None, memory_bytes: int, is_own: bool, tiers: Mapping[str, str | None]
) -> int:
    """Returns what the GPU tier is asked to have; 0: as --gpu says."""
    if not is_own and not set_up.preempts:
        why = "which tiers there are is for who starts the service to say"
        _refuse("--kv", set_up.name, f"{why}; remedy: --own-service, or --kv full")
    if memory is not None and not is_own:
        _refuse("--kv-memory", memory, "a service that runs has its memory already; remedy: --own-service")
    if memory is not None and tiers["--gpu"] is not None:
        _refuse("--gpu", tiers["--gpu"], "it is the memory that --kv-memory names too; remedy: give one")
    for flag in () if set_up.has_lower_tiers else ("--cpu", "--disk-bytes"):
        if tiers[flag] is not None:
            _refuse(flag, tiers[flag], f"--kv {set_up.name} has a GPU tier alone; remedy: --kv tiered")
    return memory_bytes if memory is not None else 0


def _service_flags(set_up: SetUp, memory_bytes: int, tiers: Mapping[str, str | None]) -> list[str]:
    gpu = str(memory_bytes) if memory_bytes else tiers["--gpu"] or DEFAULTS["--gpu"]
    if not set_up.has_lower_tiers:
        return ["--gpu", gpu, "--cpu", "0"]
    lower = [tiers[flag] or DEFAULTS[flag] for flag in ("--cpu", "--disk-bytes")]
    return ["--gpu", gpu, "--cpu", lower[0], "--disk-bytes", lower[1]]


def _check_own_memory(
    set_up: SetUp, memory_bytes: int, device: str, kvstore: str, tiers: Mapping[str, str | None]
) -> None:
    why = f"--kv {set_up.name} keeps KV in this process, with no service"
    if kvstore:
        _refuse("--kvstore", kvstore, f"{why}; remedy: leave it out")
    for flag, value in tiers.items():
        if value is not None:
            remedy = "--kv-memory" if flag == "--gpu" else "leave it out"
            _refuse(flag, value, f"{why}; remedy: {remedy}")
    if device != "cpu":
        _refuse("--device", device, f"--kv {set_up.name} has its memory on the host; remedy: --device cpu")
    there_is = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if memory_bytes > there_is:
        _refuse("--kv-memory", memory_bytes, f"this machine has {there_is} bytes; remedy: ask for less")


def _parse_size(text: str) -> int:
    found = SIZE.fullmatch(text.strip())
    if found is None:
        _refuse("--kv-memory", text, "it is no size; remedy: bytes, or with a unit: 512MiB, 2GiB")
    unit = found[2].upper()
    base = 1024 if "I" in unit else 1000
    size = int(float(found[1]) * base ** POWERS.index(unit[:1].strip("B") or " "))
    if not size:
        _refuse("--kv-memory", text, "there must be some; remedy: 512MiB, 2GiB")
    return size


def _refuse(flag: str, value: object, why: str) -> NoReturn:
    raise KVRefused(f"{flag} {value}: {why}")
