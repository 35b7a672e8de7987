"""`--kv` and its companions: what goes together, and what is refused by which flag's name."""

from typing import Any

import pytest
from typer.testing import CliRunner

from engine.kv.set_ups import SET_UPS
from engine.server.command import app
from engine.server.kv_choice import KVChoice, KVRefused, choose_kv

NO_TIERS = {"--gpu": None, "--cpu": None, "--disk-bytes": None, "--folder": None}


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
    [("4096", 4096), ("1.5KiB", 1536), ("2 MiB", 2 << 20), ("3gib", 3 << 30), ("7MB", 7_000_000), ("9B", 9)],
)
def test_sizes_are_read_as_the_service_reads_them(text, size):
    assert choose("paged", memory=text).memory_bytes == size


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
        ("contiguous", {"device": "cuda"}, "--device cuda: .*; remedy: --device cpu"),
        ("paged", {"memory": "much"}, "--kv-memory much: it is no size"),
        ("paged", {"memory": "0GiB"}, "--kv-memory 0GiB: there must be some"),
        ("paged", {"memory": "9000TiB"}, "--kv-memory .*: this machine has"),
        ("shared", {"is_own": False}, "--kv shared: .*; remedy: --own-service, or --kv full"),
        ("shared", {"tiers": {"--cpu": "1GiB"}}, "--cpu 1GiB: --kv shared has a GPU tier alone"),
        ("full", {"is_own": False, "memory": "1GiB"}, "--kv-memory 1GiB: .*; remedy: --own-service"),
        ("full", {"memory": "1GiB", "tiers": {"--gpu": "2GiB"}}, "--gpu 2GiB: .*; remedy: give one"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(name, changes, told):
    with pytest.raises(KVRefused, match=f"^{told}"):
        choose(name, **changes)


def test_the_program_tells_it_and_ends():
    result = CliRunner().invoke(app, ["serve", "--kv", "paged", "--kvstore", "unix:x"])
    assert result.exit_code == 2
    assert result.stderr.startswith("kvstore-engine: --kvstore unix:x: --kv paged")
