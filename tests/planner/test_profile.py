"""What hardware takes: the formula, and files that say it otherwise."""

import json

import pytest

from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import COPY, LOAD, READ, WRITE
from kvstore.planner.profile import H200_LLAMA_8B, Profile, load_profile


def test_prefill_in_two_parts_costs_one_pass_more():
    whole = H200_LLAMA_8B.prefill_seconds(0, 5000)
    parts = H200_LLAMA_8B.prefill_seconds(0, 1000) + H200_LLAMA_8B.prefill_seconds(1000, 5000)
    assert parts - whole == pytest.approx(H200_LLAMA_8B.alpha_seconds)


def test_the_default_is_what_was_published_for_an_h200():
    # KV of 131,072 bytes a token at 3.23 GB/s; attention as much as all else at 30,000 tokens.
    assert 131_072 / H200_LLAMA_8B.beta_seconds == pytest.approx(3.23e9, rel=0.01)
    assert H200_LLAMA_8B.beta_seconds / H200_LLAMA_8B.gamma_seconds == pytest.approx(30_000)


def test_a_file_changes_what_it_names(tmp_path):
    path = tmp_path / "slow.toml"
    path.write_text('name = "slow"\nbeta_seconds = 1e-3\n[disk_to_cpu]\nbandwidth_bytes_per_second = 2e9\n')
    profile = load_profile(path)
    assert (profile.name, profile.beta_seconds) == ("slow", 1e-3)
    assert profile.links()[READ].seconds(2_000_000_000) == 1
    assert profile.links()[LOAD] == H200_LLAMA_8B.links()[LOAD]
    as_json = tmp_path / "slow.json"
    as_json.write_text(json.dumps({"name": "slow", "beta_seconds": 1e-3}))
    assert load_profile(as_json).beta_seconds == 1e-3


def test_the_links_that_a_service_has_measured(tmp_path):
    def link(source: str, target: str, bandwidth: float) -> dict:
        rate = {"bandwidth_bytes_per_second": bandwidth, "fixed_seconds": 0.5, "samples": "9"}
        return {"source": f"TIER_{source}", "target": f"TIER_{target}", "rate": rate}

    path = tmp_path / "status.json"
    path.write_text(json.dumps({"links": [link("GPU", "CPU", 4.0), link("CPU", "DISK", 0.0)], "tiers": []}))
    profile = load_profile(path)
    assert profile.links()[COPY].seconds(4) == 1.5
    # Not measured: the default's.
    assert profile.links()[WRITE] == H200_LLAMA_8B.links()[WRITE]
    assert "status.json" in profile.name
    path.write_text(json.dumps({"links": [link("GPU", "CPU", 0.0)]}))
    with pytest.raises(ConfigInvalid, match="no link in it was measured yet"):
        load_profile(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("beta_seconds = -1", "Expected `float` >= 0"),
        ("betta_seconds = 1", "Object contains unknown field `betta_seconds`"),
        ("[gpu_to_cpu]\nfixed_seconds = 1", "missing required field `bandwidth_bytes_per_second`"),
        ("running_max = 0", "Expected `int` >= 1"),
        ("beta_seconds", "can't be read"),
        ("\xff", "can't be read"),
    ],
)
def test_a_file_that_is_wrong(tmp_path, text, words):
    path = tmp_path / "profile.toml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigInvalid) as caught:
        load_profile(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"links": [{"source": ["TIER_GPU"], "target": {}, "rate": {"fixed_seconds": 1}}]}',
            "no link in it",
        ),
        ('{"links": [{"source": "TIER_GPU", "target": "TIER_CPU", "rate": 5}, 7]}', "no link in it"),
        ("[" * 99_999, "can't be read"),
    ],
)
def test_a_status_that_is_none(tmp_path, text, words):
    path = tmp_path / "status.json"
    path.write_text(text)
    with pytest.raises(ConfigInvalid, match=words):
        load_profile(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigInvalid, match="No such file"):
        load_profile(tmp_path / "none.toml")


def test_a_status_of_a_service_has_these_names():
    """As `kvstore status --json` prints them: the fields of the contract's messages."""
    from kvstore.v1 import kvstore_pb2 as pb

    assert {"source", "target", "rate"} <= set(pb.LinkUsage.DESCRIPTOR.fields_by_name)
    assert {"bandwidth_bytes_per_second", "fixed_seconds"} <= set(pb.LinkRate.DESCRIPTOR.fields_by_name)
    assert {"TIER_GPU", "TIER_CPU", "TIER_DISK"} <= set(pb.Tier.keys())
    assert Profile() == H200_LLAMA_8B
