"""`--kv` and its companions: what goes together, and what is refused by which flag's name."""

import os
import re
from typing import Any

import pytest

from engine.kv.set_ups import SET_UPS
from engine.server.flags import FlagRefused
from engine.server.kv_choice import KVChoice, check_gpu, check_room, choose_kv
from kvstore.core.errors import ConfigInvalid
from kvstore.server.config import parse_config

NO_TIERS = {"--gpu": None, "--cpu": None, "--disk-bytes": None, "--folder": None}


def machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def choose(name: str, tiers: dict[str, str] | None = None, **changes: Any) -> KVChoice:
    asked: dict[str, Any] = {
        "memory": None,
        "block_tokens": 16,
        "reserve_tokens": None,
        "device": "cpu",
        "kvstore": "",
        "is_own": True,
    }
    return choose_kv(name, tiers={**NO_TIERS, **(tiers or {})}, **{**asked, **changes})


def test_each_set_up_has_the_same_memory_and_the_tiers_that_it_is_named_for():
    choices = {name: choose(name, memory="3GiB") for name in SET_UPS}
    assert {name: choice.memory_bytes for name, choice in choices.items()} == {
        "contiguous": 3 << 30,
        "paged": 3 << 30,
        "shared": 0,
        "tiered": 0,
        "full": 0,
    }
    gpu = ["--gpu", str(3 << 30)]
    assert choices["shared"].service_flags == [*gpu, "--cpu", "0"]
    assert choices["tiered"].service_flags == [*gpu, "--cpu", "1GiB", "--disk-bytes", "4GiB"]
    assert choices["full"].service_flags == choices["tiered"].service_flags


def test_a_service_keeps_the_flags_that_it_had():
    tiers = {"--gpu": "25%", "--cpu": "2GiB", "--disk-bytes": "9GiB", "--folder": "/tmp/x"}
    flags = choose("full", tiers).service_flags
    assert flags == ["--gpu", "25%", "--cpu", "2GiB", "--disk-bytes", "9GiB"]
    assert choose("full").service_flags[:2] == ["--gpu", "1GiB"]
    assert choose("full", is_own=False, kvstore="unix:x").memory_bytes == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("5.5KiB", 5632), ("2 MiB", 2 << 20), ("3gib", 3 << 30), ("7MB", 7_000_000)],
)
def test_memory_is_bytes_or_has_a_unit(text, size):
    assert choose("paged", memory=text).memory_bytes == size


@pytest.mark.parametrize("flag", ["--gpu", "--cpu", "--disk-bytes"])
@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "0", "1", "4095", "4096", "-1", "nan", "inf", "1e9", "5G", "9MiB", "25%", "0%", "101%"),
        *("4194303", "4194304", "9000TiB", "9" * 400, "ä", "\udcff", "٣MiB", "2 GiB ", "0x10"),
    ],
)
def test_what_the_service_would_refuse_is_refused_before_it_is_started(tmp_path, flag, text):
    sizes = {"--gpu": "1MiB", "--cpu": "1MiB", "--disk-bytes": "64MiB", flag: text}
    asked = {name.removeprefix("--").replace("-", "_"): size for name, size in sizes.items()}
    try:
        parse_config(socket="unix:x", disk=str(tmp_path), memory_bytes=machine_bytes(), **asked)
        is_taken = True
    except ConfigInvalid:
        is_taken = False
    if is_taken:
        words = [word for pair in sizes.items() for word in pair]
        assert choose("full", sizes).service_flags == words
    else:
        shown = re.escape(text if text.strip() and text.isprintable() else repr(text))
        with pytest.raises(FlagRefused, match=f"^{flag} {shown}: .*; remedy: "):
            choose("full", sizes)


def test_memory_on_the_host_is_counted_together_and_on_a_gpu_it_is_not():
    half = str(machine_bytes() // 4 * 3)
    with pytest.raises(FlagRefused, match=f"^--cpu {half}: this machine has .* --gpu takes {half}; rem"):
        choose("full", {"--gpu": half, "--cpu": half})
    assert choose("full", {"--gpu": half, "--cpu": half}, device="cuda").pool.bytes == int(half)
    # Of which GPU a share is, is not known yet.
    assert choose("full", {"--gpu": "25%"}, device="cuda").pool.bytes == 0
    assert choose("full", {"--gpu": "25%"}).pool.bytes == machine_bytes() // 4
    assert choose("paged", memory="9000TiB", device="cuda").memory_bytes == 9000 << 40


def test_the_model_and_the_gpu_say_what_is_too_little_and_too_much():
    own = choose("contiguous", memory="1MiB")
    check_room(own, 1 << 20)
    with pytest.raises(
        FlagRefused, match=r"^--kv-memory 1MiB: no room .* 1048577 bytes; .* fewer --reserve-"
    ):
        check_room(own, (1 << 20) + 1)
    tier = choose("full", {"--gpu": "1MiB"})
    with pytest.raises(FlagRefused, match=r"^--gpu 1MiB: no room .* fewer --block-tokens$"):
        check_room(tier, 2 << 20)
    check_room(choose("full", is_own=False), 2 << 60)
    check_gpu(tier, "cuda", 1 << 20)
    with pytest.raises(FlagRefused, match=r"^--gpu 1MiB: cuda has 1048575 bytes; remedy: ask for less$"):
        check_gpu(tier, "cuda", (1 << 20) - 1)


def test_what_is_reserved_is_whole_blocks():
    assert choose("contiguous", reserve_tokens=300, block_tokens=64).reserve_tokens == 320
    assert choose("contiguous").reserve_tokens == 0


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("flat", {}, "--kv flat: there is no such set-up; remedy: one of contiguous, paged, shared, tiered"),
        ("full", {"block_tokens": 24}, "--block-tokens 24: no size of a block; remedy: one of 8, 16, 32, 64"),
        ("paged", {"reserve_tokens": 9}, "--reserve-tokens 9: --kv paged reserves nothing; remedy: --kv con"),
        ("paged", {"kvstore": "unix:x"}, "--kvstore unix:x: --kv paged keeps KV in this process"),
        ("paged", {"tiers": {"--gpu": "1GiB"}}, "--gpu 1GiB: .*; remedy: --kv-memory"),
        ("contiguous", {"tiers": {"--folder": "f"}}, "--folder f: .*; remedy: leave it out"),
        ("paged", {"memory": "much"}, "--kv-memory much: not a size; remedy: write bytes or"),
        ("paged", {"memory": ""}, "--kv-memory '': not a size"),
        ("paged", {"memory": "50%"}, "--kv-memory 50%: takes bytes only, no share"),
        ("paged", {"memory": "0GiB"}, "--kv-memory 0GiB: no room for a single block; remedy: at least 4096"),
        ("paged", {"memory": "9000TiB"}, "--kv-memory .*: this machine has"),
        ("shared", {"is_own": False}, "--kv shared: .*; remedy: --own-service, or --kv full"),
        ("shared", {"tiers": {"--cpu": "1GiB"}}, "--cpu 1GiB: --kv shared has a GPU tier alone"),
        ("full", {"is_own": False, "memory": "1GiB"}, "--kv-memory 1GiB: .*; remedy: --own-service"),
        ("full", {"memory": "1GiB", "tiers": {"--gpu": "2GiB"}}, "--gpu 2GiB: .*; remedy: give one"),
        *(
            ("full", {"is_own": False, "tiers": {flag: "1GiB"}}, f"{flag} 1GiB: .*; remedy: --own-service, ")
            for flag in NO_TIERS
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(name, changes, told):
    with pytest.raises(FlagRefused, match=f"^{told}"):
        choose(name, **changes)
