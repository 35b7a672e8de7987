"""`kvstore simulate TRACE`: the page, the JSON, the drawing, and what is refused."""

import json
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from kvstore.cli import plan_drawing
from kvstore.cli.main import app
from kvstore.core.calls import SetCosts
from kvstore.core.errors import KVStoreError
from kvstore.policy.choices import EVICTION_POLICIES
from tests.core.caller import Caller
from tests.core.world import World, make_store, text
from tests.observe.helpers import journaled

# Blocks of 16 tokens at 1 KiB a token are 16 KiB.
TIERS = ("--gpu", "192KiB", "--cpu", "128KiB", "--disk", "1MiB", "--kv-bytes-per-token", "1024")


@pytest.fixture
def trace(tmp_path):
    """Four conversations in turns, each prompt with all before it and 32 tokens more."""
    lines = ['{"kvstore_trace": 1, "block_tokens": 16}']
    for turn in range(4):
        for chat in range(4):
            blocks = [1, *range(100 * chat + 2, 100 * chat + 3 + 2 * turn)]
            record = {"time": 30 * turn + chat, "input": 16 * len(blocks), "output": 17, "blocks": blocks}
            lines.append(json.dumps({**record, "session": f"chat-{chat}"}))
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(lines))
    return path


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def refused(*arguments: object) -> str:
    result = simulate(*arguments)
    assert isinstance(result.exception, KVStoreError), result.output
    return str(result.exception)


def test_the_page(trace):
    result = simulate(trace, *TIERS)
    assert result.exit_code == 0, result.output
    for words in (
        "chats: 16 requests",
        "closed loop",
        "eviction by worth, swaps by cost",
        "preempted",
        "H200",
        "the optimum",
        "first token, p95",
    ):
        assert words in result.output
    for tier in ("GPU", "CPU", "DISK"):
        assert tier in result.output
    assert "Twice the CPU tier" in result.output
    assert max(map(len, result.output.splitlines())) <= 120


def test_the_same_figures_as_json(trace):
    result = simulate(trace, *TIERS, "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout.splitlines()[-1])
    assert plan["frames"] == {"gpu": 12, "cpu": 8, "disk": 64}
    assert plan["with"]["requests"] == 16
    assert plan["with"]["blocks_read"] == 4 * (2 + 4 + 6 + 8)
    assert (
        sum(plan["with"]["blocks_found"].values()) <= plan["endless_hit_rate"] * plan["with"]["blocks_read"]
    )
    assert plan["without"]["hit_rate"] == 0
    assert plan["twice_cpu"]["hit_rate"] >= plan["with"]["hit_rate"]
    assert plan["with"]["prefill_seconds"] < plan["without"]["prefill_seconds"]
    assert plan["with"]["bytes_moved"]["gpu_to_cpu"] > 0
    assert plan["closed"] is True
    assert plan["sweep"] == []


def test_a_drawing(trace, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    result = simulate(trace, *TIERS, "--sweep", tmp_path / "hits", "--json")
    assert result.exit_code == 0, result.output
    points = json.loads(result.stdout.splitlines()[0])["sweep"]
    capacities = [point["capacity_bytes"] for point in points]
    assert capacities == sorted(capacities)
    assert len(points) == 7
    # A machine that refuses what doesn't fit finds no larger share for it.
    assert [point["best_hit_rate"] for point in points] == sorted(point["best_hit_rate"] for point in points)
    assert all(point["hit_rate"] <= point["best_hit_rate"] + 1e-9 for point in points)
    assert (tmp_path / "hits.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(tmp_path / "hits.svg").getroot().tag.endswith("svg")


def test_a_drawing_that_can_not_be_made(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_drawing, "find_spec", lambda name: None)
    assert "pip install 'kvstore[plots]'" in refused(trace, *TIERS, "--sweep", tmp_path / "hits")
    monkeypatch.undo()
    assert "no such folder" in refused(trace, *TIERS, "--sweep", tmp_path / "none" / "hits")
    # All of it before anything is played, and nothing is left of the look.
    for place in (tmp_path, "", "."):
        assert "a folder (name the drawing too" in refused(trace, *TIERS, "--sweep", place)
    assert "can't be written" in refused(trace, *TIERS, "--sweep", "/proc/hits")
    assert not list(tmp_path.glob("*.svg"))
    (tmp_path / "hits.png").mkdir()
    assert "hits.png can't be written: Is a dir" in refused(trace, *TIERS, "--sweep", tmp_path / "hits")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "best"), "--policy = best: no such policy (one of worth, lru"),
        (("--swap-policy", "best"), "--swap-policy = best: no such policy (one of cost, length"),
        (("--loop", "round"), "--loop = round: no such loop"),
        (("--gpu", "much"), "--gpu = much: not a size"),
        (("--gpu", "1KiB"), "--gpu = 1024: a block of 16 tokens is 16384 bytes"),
        (("--cpu", "0"), "a disk tier needs a CPU tier"),
        (("--block-tokens", "32"), "leave --block-tokens 32 out"),
        (("--profile", "nowhere.toml"), "--profile = nowhere.toml: No such file"),
    ],
)
def test_what_is_refused(trace, arguments, words):
    assert words in refused(trace, *TIERS, *arguments)


def test_one_thing_is_simulated(trace, tmp_path):
    for arguments in ((), (trace, "--trace-from-journal", tmp_path), (trace, "--fuzz")):
        result = simulate(*arguments)
        assert result.exit_code == 2
        assert " (a TRACE, " in result.output or "leave one of them out" in result.output


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_each_policy_can_be_named(trace, name):
    result = simulate(trace, *TIERS, "--policy", name, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["policy"] == name


def test_a_trace_out_of_a_journal_is_named_in_its_place(tmp_path):
    assert "no run is recorded there" in refused("--trace-from-journal", tmp_path)


@pytest.fixture
def journal(tmp_path):
    """Of a service whose blocks of 4 tokens took 4 KiB each."""
    store = make_store(gpu_frames=16, cpu_frames=16)
    with journaled(store, tmp_path):
        caller = Caller(World(store))
        caller.world.handle(SetCosts(time=caller.world.time, block_bytes=4_096, links=()))
        for sequence in range(1, 5):
            caller.cache(text(1, 16), sequence, session="chat")
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "each", "source", "words"),
    [
        ((), 1_024, "journal", "KV: 1,024 bytes a token, as the journal has it, padding included"),
        (
            ("--kv-bytes-per-token", 2_048),
            2_048,
            "flag",
            "KV: 2,048 bytes a token, as --kv-bytes-per-token says; the journal's model took 1,024",
        ),
        (
            ("--kv-bytes-per-token", 1_024),
            1_024,
            "flag",
            "KV: 1,024 bytes a token, as --kv-bytes-per-token says",
        ),
    ],
)
def test_a_journal_is_played_with_the_bytes_of_its_own_model_unless_others_are_named(
    journal, flags, each, source, words
):
    arguments = ("--trace-from-journal", journal, "--gpu", "1MiB", "--cpu", "1MiB", *flags)
    plan = json.loads(simulate(*arguments, "--json").stdout.splitlines()[-1])
    assert (plan["kv_bytes_per_token"], plan["kv_bytes_per_token_from"]) == (each, source)
    assert plan["block_bytes"] == 4 * each
    page = simulate(*arguments).output
    assert words in " ".join(page.split())
    assert ("took" in page) is ("took" in words)


def test_where_nobody_says_what_a_token_takes_the_page_says_so(trace, tmp_path):
    plan = " ".join(simulate(trace, "--gpu", "1GiB").output.split())
    assert "KV: 131,072 bytes a token, as --kv-bytes-per-token is without a word Found in" in plan
    store = make_store(gpu_frames=16)
    with journaled(store, tmp_path / "journal"):
        Caller(World(store)).cache(text(1, 16))
    plan = " ".join(simulate("--trace-from-journal", tmp_path / "journal", "--gpu", "1GiB").output.split())
    assert "as --kv-bytes-per-token is without a word: the journal doesn't say" in plan
