"""`--kv` and what goes with it: where KV is kept, how much memory there is for it, which service is started.

What makes no sense together is refused by the flag's name. Tests: tests/engine/server/test_kv_choice.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.kv.set_ups import BLOCK_TOKENS, SET_UPS, SetUp
from engine.server.flags import FlagRefused, check_one_of
from engine.server.tier_sizes import Size, check_machine, disk_size, memory_size

__all__ = ["KVChoice", "check_gpu", "check_room", "choose_kv"]

DEFAULTS = {"--gpu": "1GiB", "--cpu": "1GiB", "--disk-bytes": "4GiB"}
NO_SIZE = Size("", "", 0)


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
    # What has to have room for frames; a service that runs has it already.
    pool: Size


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

    Raises FlagRefused.
    """
    check_one_of("--kv", name, "there is no such set-up", tuple(SET_UPS))
    set_up = SET_UPS[name]
    check_one_of("--block-tokens", str(block_tokens), "no size of a block", tuple(map(str, BLOCK_TOKENS)))
    if reserve_tokens is not None and not set_up.is_contiguous:
        raise FlagRefused(
            "--reserve-tokens", reserve_tokens, f"--kv {name} reserves nothing", "--kv contiguous"
        )
    # Whole blocks, as with all others.
    reserve_tokens = -(-(reserve_tokens or 0) // block_tokens) * block_tokens
    flags: Sequence[str] = ()
    if not set_up.has_service:
        _check_has_no_service(set_up, kvstore, tiers)
        pool = memory_size("--kv-memory", DEFAULTS["--gpu"] if memory is None else memory)
        if device == "cpu":
            check_machine(pool)
    elif is_own:
        flags, pool = _own_service(set_up, memory, tiers, device)
    else:
        _check_starts_none(set_up, memory, tiers)
        pool = NO_SIZE
    return KVChoice(
        set_up=set_up,
        memory_bytes=0 if set_up.has_service else pool.bytes,
        block_tokens=block_tokens,
        reserve_tokens=reserve_tokens,
        service_flags=flags,
        pool=pool,
    )


def check_room(choice: KVChoice, frame_bytes: int) -> None:
    """When the model is known: whether there is room for a frame of it. Raises FlagRefused."""
    if 0 < choice.pool.bytes < frame_bytes:
        fewer = "--reserve-tokens" if choice.set_up.is_contiguous else "--block-tokens"
        why = f"no room for a single frame of {frame_bytes} bytes"
        raise choice.pool.refuse(why, f"as much or more, or fewer {fewer}")


def check_gpu(choice: KVChoice, device: str, device_bytes: int) -> None:
    """When the GPU was found: whether it has the memory that is asked for there. Raises FlagRefused."""
    if choice.pool.bytes > device_bytes:
        raise choice.pool.refuse(f"{device} has {device_bytes} bytes", "ask for less")


def _check_has_no_service(set_up: SetUp, kvstore: str, tiers: Mapping[str, str | None]) -> None:
    why = f"--kv {set_up.name} keeps KV in this process, with no service"
    if kvstore:
        raise FlagRefused("--kvstore", kvstore, why, "leave it out")
    for flag, value in tiers.items():
        if value is not None:
            raise FlagRefused(flag, value, why, "--kv-memory" if flag == "--gpu" else "leave it out")


def _check_starts_none(set_up: SetUp, memory: str | None, tiers: Mapping[str, str | None]) -> None:
    if not set_up.preempts:
        why = "which tiers there are is for who starts the service to say"
        raise FlagRefused("--kv", set_up.name, why, "--own-service, or --kv full")
    for flag, value in {"--kv-memory": memory, **tiers}.items():
        if value is not None:
            why = "a service that runs has its memory and its folder already"
            raise FlagRefused(flag, value, why, "--own-service, or leave it out")


def _own_service(
    set_up: SetUp, memory: str | None, tiers: Mapping[str, str | None], device: str
) -> tuple[list[str], Size]:
    """Its flags, and the size of its GPU tier."""
    if memory is not None and tiers["--gpu"] is not None:
        why = "it is the memory that --kv-memory names too"
        raise FlagRefused("--gpu", tiers["--gpu"], why, "give one")
    for flag in () if set_up.has_lower_tiers else ("--cpu", "--disk-bytes"):
        if tiers[flag] is not None:
            why = f"--kv {set_up.name} has a GPU tier alone"
            raise FlagRefused(flag, tiers[flag], why, "--kv tiered")
    typed = DEFAULTS | {flag: text for flag in DEFAULTS if (text := tiers[flag]) is not None}
    if memory is None:
        gpu = memory_size("--gpu", typed["--gpu"], takes_share=True)
    else:
        gpu = memory_size("--kv-memory", memory)
        typed["--gpu"] = str(gpu.bytes)
    is_on_host = device == "cpu"
    if is_on_host:
        check_machine(gpu)
    elif "%" in gpu.text:
        # Of a GPU that nobody has asked yet.
        gpu = replace(gpu, bytes=0)
    if not set_up.has_lower_tiers:
        return ["--gpu", typed["--gpu"], "--cpu", "0"], gpu
    cpu = memory_size("--cpu", typed["--cpu"], takes_share=True)
    check_machine(cpu, gpu if is_on_host else None)
    disk_size("--disk-bytes", typed["--disk-bytes"])
    return [word for flag, text in typed.items() for word in (flag, text)], gpu
