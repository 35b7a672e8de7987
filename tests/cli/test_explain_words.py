"""A decision in words: whom it concerns, both sides of the sum, and no figure without its meaning."""

import pytest
from typer.testing import CliRunner

from kvstore.cli import explain
from kvstore.cli.explain_sources import Answer
from kvstore.cli.explain_words import describe
from kvstore.cli.main import app
from kvstore.v1 import kvstore_pb2 as pb

LINK = {"blocks": 70.0, "blocks_ahead": 0.0, "bytes_per_second": 20e9, "fixed_seconds": 5e-6, "price": 1.0}
PREFILL = {
    "alpha_seconds": 5e-4,
    "beta_seconds": 1.5e-5,
    "gamma_seconds": 1.3e-8,
    "pass_tokens": 256.0,
    "gpu_price": 2.0,
}


def link(name: str, **figures: float) -> dict[str, float]:
    return {f"{name}_{each}": value for each, value in {**LINK, **figures}.items()}


def words(decision: pb.Decision) -> str:
    return " ".join(describe(decision).split())


def test_whose_it_is_is_said_as_far_as_it_is_known() -> None:
    lot = pb.Decision(kind="admit", chosen="written to disk", reason="it is kept")
    assert describe(lot).splitlines()[0].endswith(" UTC  admit")
    lot.tenants.extend(["acme", "zeta"])
    assert describe(lot).splitlines()[0].endswith(" UTC  admit (tenants acme, zeta)")
    lot.ClearField("tenants")
    lot.tenant = "acme"
    assert describe(lot).splitlines()[0].endswith(" UTC  admit (tenant acme)")
    swap = pb.Decision(
        kind="swap", chosen="drop", engine="engines/0123456789", sequence=7, tenant="acme", session="chat"
    )
    head = describe(swap).splitlines()[0]
    assert head.endswith(" UTC  swap of sequence 7 (session chat, engine 01234567, tenant acme)")


def test_no_name_ends_a_line_or_speaks_to_the_terminal() -> None:
    name, as_told = "a\nb\x1b[31m\u202e ü", r"a\nb\x1b[31m\u202e ü"
    lot = pb.Decision(kind="evict", chosen="from the GPU by Lru", reason="it is full", session=name)
    lot.room_for.add(sequence=3, session=name)
    lot.blocks_of.add(session=name, blocks=2)
    told = describe(lot)
    assert told.splitlines()[0].endswith(f"evict (session {as_told})")
    assert f"(sequence 3 of session {as_told})" in told
    assert f"Whose: {as_told} 2." in told


def test_a_swap_tells_both_sums_and_what_a_price_is() -> None:
    swap = pb.Decision(
        kind="swap",
        chosen="swap",
        other="drop",
        chosen_cost_seconds=7e-5,
        other_cost_seconds=0.06,
        sequence=3,
        inputs={
            "tokens": 1_120.0,
            "tokens_kept": 0.0,
            "block_tokens": 16.0,
            "block_bytes": 8_192.0,
            "break_even_tokens": 12.4,
            "compute_tokens": 1_120.0,
            "compute_seconds": 0.03,
            "room_below": 1.0,
            **PREFILL,
            **link("gpu_to_cpu", seconds=3.5e-5, price=1.25, blocks_ahead=4.0),
            **link("cpu_to_gpu", seconds=3.5e-5),
        },
    )
    told = words(swap)
    assert "Swapped out (1,120 tokens in blocks of 16), for 70 us; to drop it, and compute it again," in told
    assert "would have cost 60 ms." in told
    assert "GPU to CPU 70 blocks (560 KiB) at 20 GB/s x 1.25 (link busy 20%) + 4 blocks that wait" in told
    assert "drop: compute 1,120 tokens again, 30 ms x 2 (GPU busy 50%) = 60 ms." in told
    assert "To swap pays from 12 tokens on." in told
    assert "Also:" not in told
    swap.inputs["break_even_tokens"] = float("inf")
    assert "To swap never pays." in words(swap)


def test_what_was_moved_by_the_store_itself_says_for_what_and_how_long_it_had_rested() -> None:
    inputs = {"tokens": 48.0, "frames_short": 5.0, "idle_sequences": 3.0, "room_below": 0.0}
    inputs |= {"rests_seconds": 12.0, "hold_seconds": 8.0, "pressed_share": 0.25}
    told = words(pb.Decision(kind="swap", chosen="drop", reason="by length", inputs=inputs))
    assert "Dropped (48 tokens). Both ways were not weighed: by length." in told
    assert "5 frames were lacking, and 3 sequences did not run." in told
    assert "It is parked for 12 s, so far or as its engine has told. Its room is worth 8 s" in told
    assert "short of room for 25% of the last minute." in told
    assert "There was no room below the GPU." in told


def test_a_load_tells_what_was_loaded_and_what_computed_both_ways() -> None:
    restore = pb.Decision(
        kind="restore",
        chosen="load the head, compute the rest",
        other="load all",
        chosen_cost_seconds=0.010,
        other_cost_seconds=0.030,
        inputs={
            "tokens": 1_024.0,
            "block_tokens": 16.0,
            "block_bytes": 8_192.0,
            "blocks_kept_least": 10.0,
            "blocks_found": 64.0,
            "blocks_kept": 40.0,
            "blocks_loaded": 30.0,
            "blocks_read": 0.0,
            "compute_tokens": 384.0,
            "compute_seconds": 0.004,
            "other_blocks_loaded": 54.0,
            "other_blocks_read": 24.0,
            "other_compute_tokens": 0.0,
            "other_compute_seconds": 0.0,
            **PREFILL,
            **link("cpu_to_gpu", blocks=30.0, seconds=2e-3),
            **link("disk_to_cpu", blocks=0.0, seconds=0.0),
        },
    )
    told = words(restore)
    # Of 40 blocks that are used, and 64 the other way, 10 are where they are to be.
    assert (
        "Load the head, compute the rest: 30 blocks loaded, 10 blocks found on the GPU, 384 tokens computed, "
        "for 10 ms." in told
    )
    assert (
        "The best other way, load all: 54 blocks loaded (24 of them from disk), 10 blocks found on the GPU, "
        "0 tokens computed, would have cost 30 ms." in told
    )
    assert "would have cost 30 ms." in told
    assert "The first 10 blocks are used in any case" in told
    assert "as chosen: load CPU to GPU 30 blocks (240 KiB)" in told
    assert "compute 4 ms x 2 (GPU busy 50%) = 8 ms." in told
    assert "otherwise: load 30 ms." in told
    assert "Also:" not in told


def test_a_load_that_was_not_weighed_says_why_not() -> None:
    inputs = {"tokens": 32.0, "block_tokens": 16.0, "blocks_loaded": 2.0, "blocks_read": 2.0}
    decision = pb.Decision(kind="restore", chosen="load all", reason="it is early", inputs=inputs)
    told = words(decision)
    assert "Load all: 2 blocks loaded (all of them from disk), 0 tokens computed." in told
    assert "It was not weighed against computing: it is early." in told
    # Nobody has counted what lies about in too many pieces.
    inputs = {"tokens": 2_080.0, "block_tokens": 16.0, "pieces": 65.0}
    decision = pb.Decision(kind="restore", chosen="load all", reason="it is in pieces", inputs=inputs)
    told = words(decision)
    assert "Load all. It was not weighed against computing: it is in pieces. Also: pieces 65." in told


@pytest.mark.parametrize(
    ("out", "back", "told"),
    [
        (
            7,
            33,
            "It has 33 blocks: 26 have a copy below the GPU from before, so 7 go down; all 33 come up again.",
        ),
        (33, 30, "It has 33 blocks: all 33 go down; 3 stay on the GPU for others, so 30 come up again."),
        (
            0,
            32,
            "It has 33 blocks: 33 have a copy below the GPU from before, so none goes down; 1 stays on the "
            "GPU for others, so 32 come up again.",
        ),
        (
            1,
            0,
            "It has 33 blocks: 32 have a copy below the GPU from before, so 1 goes down; 33 stay on the GPU "
            "for others, so none comes up again.",
        ),
    ],
)
def test_why_not_as_many_blocks_go_down_as_come_up_is_said(out: int, back: int, told: str) -> None:
    swap = pb.Decision(
        kind="swap", chosen="swap", other="drop", chosen_cost_seconds=1e-3, other_cost_seconds=1
    )
    swap.inputs.update(tokens=520.0, block_tokens=16.0, block_bytes=8_192.0, room_below=1.0, **PREFILL)
    swap.inputs.update(link("gpu_to_cpu", blocks=float(out), seconds=1e-4))
    swap.inputs.update(link("cpu_to_gpu", blocks=float(back), seconds=1e-4))
    assert told in words(swap)
    swap.inputs.update(gpu_to_cpu_blocks=33.0, cpu_to_gpu_blocks=33.0)
    assert "It has 33 blocks" not in words(swap)


def test_what_nobody_has_words_for_is_told_by_its_name() -> None:
    later = pb.Decision(kind="later", chosen="x", reason="y", inputs={"some_seconds": 0.5, "a_count": 3.0})
    assert words(later).endswith("later x: y. Also: a count 3, some 500 ms.")


def test_one_block_is_told_in_the_singular() -> None:
    lot = pb.Decision(kind="evict", chosen="from the GPU by Lru", reason="a sequence begins")
    lot.inputs.update(blocks=1.0, blocks_lost=0.0, frames_free=0.0, frames_lacking=1.0)
    told = words(lot)
    assert "1 block left the GPU, because a sequence begins." in told
    assert "It has a copy in another tier." in told
    assert "It was used longest ago." in told
    lot.inputs["blocks_lost"] = 1.0
    assert "Of 1 it was the last copy: it would have to be computed again." in words(lot)
    restore = pb.Decision(kind="restore", chosen="load all", chosen_cost_seconds=0.01)
    restore.inputs.update(tokens=32.0, block_tokens=16.0, blocks_loaded=1.0, blocks_kept_least=1.0, **PREFILL)
    assert "The first block is used in any case: it is on the GPU already." in words(restore)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("swap", "no sequence was swapped out or dropped."),
        ("evict", "no block had to leave a tier."),
        ("", "no sequence was swapped out or dropped, none came in with content from below the GPU, "),
    ],
)
def test_where_nothing_was_decided_no_more_is_said_than_was_asked_for(
    kind: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "ask", lambda *_: Answer([], 0, True))
    done = CliRunner().invoke(app, ["explain", "--kind", kind])
    assert done.exit_code == 0
    assert told in done.output
