"""Flags are refused by name, with value and remedy."""

from pathlib import Path
from typing import Any

import pytest

from kvstore.core.errors import ConfigInvalid
from kvstore.server.config import ServeConfig, parse_config
from kvstore.server.sizes import format_bytes, parse_size

GIB = 2**30


def parse(**flags) -> ServeConfig:
    given: dict[str, Any] = {"socket": "/run/x.sock", "gpu": "1GiB", "memory_bytes": 16 * GIB}
    return parse_config(**(given | flags))


def test_flags_become_one_record(tmp_path: Path) -> None:
    config = parse(
        socket="unix:/run/k.sock",
        gpu="25%",
        cpu="1.5GiB",
        disk=str(tmp_path),
        disk_bytes="1GB",
        tenants=["ann", "bob"],
        lease=2.5,
        journal=str(tmp_path / "j"),
        journal_bytes="64MiB",
    )
    assert config.socket == Path("/run/k.sock")
    assert (config.gpu_bytes, config.cpu_bytes, config.disk_bytes) == (4 * GIB, 3 * GIB // 2, 10**9)
    assert (config.disk_path, config.tenants, config.lease_seconds) == (tmp_path, ("ann", "bob"), 2.5)
    assert (config.journal_path, config.journal_bytes) == (tmp_path / "j", 64 * 2**20)
    assert parse().tenants == ("default",)
    shared = parse(tenants=["ann=1", "bob"], tenant_shares=["ann=1=75%"])
    assert shared.tenant_shares == {"ann=1": 0.75}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64KiB", 65_536),
        ("64kib", 65_536),
        ("2 MB", 2_000_000),
        ("1.5MiB", 1_572_864),
        ("50%", 500),
        ("12.5%", 125),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, flag="--gpu", whole_bytes=1000) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "-5GiB",
        "nan",
        "inf",
        "1e9",
        "GiB",
        "5G",
        "5 bananas",
        "101%",
        "-1%",
        "1GiB 2",
        "9999999TiB",
        "9" * 400,
        "9" * 400 + "%",
    ],
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        parse_size(text, flag="--gpu", whole_bytes=1000)
    assert (refused.value.field, refused.value.value) == ("--gpu", text)
    assert refused.value.remedy


def test_sizes_for_people() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1536, 5 * GIB)] == ["0 B", "1023 B", "1.5 KiB", "5 GiB"]


@pytest.mark.parametrize(
    ("flag", "flags"),
    [
        ("--gpu", {"gpu": "0"}),
        ("--gpu", {"gpu": "lots"}),
        ("--gpu", {"gpu": "4095"}),
        ("--cpu", {"cpu": "100"}),
        ("--cpu", {"cpu": "-1"}),
        ("--gpu and --cpu", {"gpu": "10GiB", "cpu": "10GiB"}),
        ("--disk", {"disk": "/d", "disk_bytes": "1GiB"}),
        ("--disk", {"disk": "/d", "cpu": "1GiB"}),
        ("--disk", {"disk": "", "cpu": "1GiB"}),
        ("--disk-bytes", {"disk": "/d", "cpu": "1GiB", "disk_bytes": "1MiB"}),
        ("--disk-bytes", {"disk": "/d", "cpu": "1GiB", "disk_bytes": "10%"}),
        ("--disk-bytes", {"disk_bytes": "1GiB"}),
        ("--journal", {"journal": "/j"}),
        ("--journal", {"journal": " ", "journal_bytes": "1GiB"}),
        (
            "--journal",
            {"journal": "/d", "journal_bytes": "1GiB", "disk": "/d", "cpu": "1GiB", "disk_bytes": "1GiB"},
        ),
        ("--journal-bytes", {"journal_bytes": "1GiB"}),
        ("--journal-bytes", {"journal": "/j", "journal_bytes": "1000KiB"}),
        ("--journal-bytes", {"journal": "/j", "journal_bytes": "10%"}),
        ("--tenant", {"tenants": ["a", "a"]}),
        ("--tenant", {"tenants": [""]}),
        ("--tenant", {"tenants": ["a\nb"]}),
        ("--tenant", {"tenants": ["x" * 257]}),
        ("--tenant-share", {"tenants": ["a", "b"], "tenant_shares": ["c=50%"]}),
        ("--tenant-share", {"tenants": ["a", "b"], "tenant_shares": ["a"]}),
        ("--tenant-share", {"tenants": ["a", "b"], "tenant_shares": ["a=50%", "a=10%"]}),
        ("--tenant-share", {"tenants": ["a", "b"], "tenant_shares": ["a=50%", "b=51%"]}),
        ("--tenant-share", {"tenants": ["a", "b"], "tenant_shares": ["a=half"]}),
        ("--disk-admission", {"cpu": "1GiB", "disk_admission": "worth"}),
        ("--lease", {"lease": 0.0}),
        ("--lease", {"lease": -1.0}),
        ("--lease", {"lease": float("nan")}),
        ("--lease", {"lease": float("inf")}),
        ("--engines-max", {"engines_max": 0}),
        ("--drain-seconds", {"drain_seconds": -1.0}),
        ("--drain-seconds", {"drain_seconds": 3601.0}),
        ("--drop-tokens-max", {"drop_tokens_max": -1}),
        ("--high-watermark", {"high_watermark": "150%"}),
        ("--low-watermark", {"low_watermark": "95%"}),
        ("--high-watermark", {"high_watermark": "90"}),
        ("--low-watermark", {"low_watermark": "nan"}),
        ("--low-watermark", {"low_watermark": "0%"}),
        ("--cpu-high-watermark", {"cpu_high_watermark": ""}),
        ("--cpu-low-watermark", {"cpu_low_watermark": "-5%"}),
        ("--socket", {"socket": ""}),
        ("--socket", {"socket": "unix:"}),
        ("--socket", {"socket": "localhost:50051"}),
        ("--socket", {"socket": "0.0.0.0:50051"}),
        ("--socket", {"socket": "tcp://127.0.0.1:50051"}),
        ("--socket", {"socket": "unix-abstract:x"}),
        ("--socket", {"socket": "/" + "x" * 104}),
        ("--socket", {"socket": "/"}),
        ("--socket", {"socket": "unix:///"}),
        ("--socket", {"socket": "/run/.."}),
        ("--socket", {"socket": "unix://rel/x"}),
        ("--socket", {"socket": "unix://"}),
        ("--socket", {"socket": "/run/a%41.sock"}),
        ("--socket", {"socket": "/run/a?b#c,d.sock"}),
        ("--socket", {"socket": "/run/\udcff.sock"}),
        ("--tenant", {"tenants": ["\udcff\udcfe"]}),
    ],
)
def test_bad_flags_are_named(flag: str, flags: dict[str, object]) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        parse(**flags)
    assert refused.value.field == flag
    assert refused.value.remedy


def test_too_much_memory_is_told_in_numbers() -> None:
    with pytest.raises(ConfigInvalid) as refused:
        parse(gpu="10GiB", cpu="10GiB")
    told = str(refused.value)
    assert "10 GiB + 10 GiB = 20 GiB" in told
    assert "16 GiB" in told


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"disk": "/d", "cpu": "1GiB"}, "--disk = /d: needs --disk-bytes (give the most"),
        ({"disk": "/d", "cpu": "1GiB", "disk_bytes": "5%"}, "--disk-bytes = 5%: takes bytes only"),
        ({"tenants": [""]}, "--tenant = '': not a name"),
        ({"disk_admission": "worth"}, "--disk-admission = worth: there is no disk tier"),
        ({"gpu": ""}, "--gpu = '': not a size"),
    ],
)
def test_a_refusal_says_what_is_wanted(flags: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        parse(**flags)
    assert told in str(refused.value)
