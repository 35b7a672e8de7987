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


def test_what_made_room_says_for_whom_whose_it_was_and_what_it_was_worth() -> None:
    lot = pb.Decision(
        kind="evict",
        chosen="from the CPU tier by Worth",
        reason="a sequence is swapped out",
        lots=3,
        inputs={
            "blocks": 12.0,
            "blocks_lost": 2.0,
            "blocks_of_sessions": 11.0,
            "frames_free": 1.0,
            "frames_lacking": 4.0,
            "worth_least_reads_per_second": 0.0,
            "worth_most_reads_per_second": 1 / 7200,
            "worth_kept_reads_per_second": 1 / 60,
        },
    )
    lot.room_for.add(engine="engines/1", sequence=4, session="chat")
    lot.room_for.add(engine="engines/1", sequence=5)
    lot.blocks_of.add(session="old", blocks=8)
    told = words(lot)
    assert "12 blocks left the CPU tier, in 3 lots, because a sequence is swapped out" in told
    assert "(sequences 4 of session chat, 5, of engine 1)." in told
    assert "At the first lot 1 frame was free there, and 4 more were needed. What the others found" in told
    assert "Of 2 it was the last copy: they would have to be computed again." in told
    assert "Whose: old 8, of other sessions 3, of no session 1." in told
    assert (
        "Those of the first lot were the least worth: at most one read is expected for each 2 h that" in told
    )
    assert "Of the next, which stays, one read is expected for each 60 s that a block stays." in told
    assert "Also:" not in told


def test_what_one_lot_needed_is_told_apart_from_what_had_to_be_left_for_others() -> None:
    lot = pb.Decision(kind="evict", chosen="from the CPU tier by Worth", reason="x", lots=1)
    lot.inputs.update(blocks=12.0, frames_free=0.0, frames_lacking=28.0, frames_spare=16.0)
    lot.inputs.update(worth_least_reads_per_second=0.1, worth_most_reads_per_second=0.1)
    told = words(lot)
    assert (
        "Before that 0 frames were free there, and 12 more were needed; 16 beside had to be such as" in told
    )
    assert "for reads from disk, and they stayed. All of them have" in told
    assert "They were the least worth: one read is expected for each 10 s that a block stays." in told
    assert told.endswith("Of others none was looked at.")
    lot.inputs["worth_kept_reads_per_second"] = 0.1
    assert words(lot).endswith("The next, which stays, is worth as much.")
    lot.inputs["worth_kept_reads_per_second"] = 0.05
    assert words(lot).endswith(
        "The next stays, though by itself it is worth less: one read is expected for each 20 s that a block "
        "stays. But a block counts for no less than what hangs on it, and goes after that."
    )
    lot.inputs.update(frames_lacking=12.0, frames_spare=0.0)
    assert "0 frames were free there, and 12 more were needed. All of them" in words(lot)


def test_of_a_lot_it_is_said_whose_tenants_sessions_and_sequences_they_are() -> None:
    lot = pb.Decision(kind="evict", chosen="from the GPU by Lru", reason="a sequence begins", lots=1)
    lot.room_for.add(engine="engines/0123456789", sequence=4, session="chat", tenant="acme")
    lot.room_for.add(engine="engines/9876543210", sequence=4, tenant="zeta")
    lot.blocks_of.add(session="chat", blocks=2, tenant="acme")
    lot.blocks_of.add(session="chat", blocks=1, tenant="zeta")
    lot.inputs.update(blocks=3.0, blocks_of_sessions=3.0)
    told = words(lot)
    assert (
        "(sequences 4 of session chat of tenant acme of engine 01234567, 4 of tenant zeta of engine" in told
    )
    assert "Whose: chat (tenant acme) 2, chat (tenant zeta) 1." in told
    # What the head line says is not said again.
    lot.tenant = "zeta"
    assert "Whose: chat (tenant acme) 2, chat 1." in words(lot)


def test_of_a_session_that_is_not_among_those_named_it_is_told_apart_from_the_others() -> None:
    lot = pb.Decision(kind="evict", chosen="from the GPU by Lru", reason="x", session="small", lots=1)
    lot.blocks_of.add(session="large", blocks=2_000)
    lot.inputs.update(blocks=3_000.0, blocks_of_sessions=1_024.0, blocks_of_this_session=3.0)
    lot.blocks_of[0].blocks = 1_000
    assert "Whose, of the first 1,024: large 1,000, of this session 3, of other sessions 21." in words(lot)


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


@pytest.mark.parametrize(
    ("chosen", "what", "told"),
    [
        ("not written", "refused", "7 blocks not written: why so."),
        ("written to disk", "taken", "7 blocks to be written to disk: why so."),
        ("shed", "shed", "7 blocks shed: why so."),
    ],
)
def test_what_goes_to_disk_or_not_says_how_likely_it_has_to_be(chosen: str, what: str, told: str) -> None:
    lot = pb.Decision(kind="admit", chosen=chosen, reason="why so", lots=1)
    lot.inputs[f"blocks_{what}"] = 7.0
    lot.inputs.update(chance_least=0.02, chance_most=0.1, chance_wanted=0.15)
    lot.inputs.update(watched_seconds=60.0, watched_seconds_wanted=600.0)
    said = words(lot)
    assert told in said
    assert "Whose: of no session." in said
    assert "Chance to be read again: 0.02 to 0.1; 0.15 is asked for." in said
    assert (
        "in the first 10 min all is taken that may come back at all; uses have been watched for 60 s." in said
    )


def test_what_is_not_copied_yet_says_when_it_is_looked_at_again() -> None:
    lot = pb.Decision(kind="admit", chosen="not copied yet", reason="why so", lots=2)
    lot.inputs.update(blocks_put_off=7.0, frames_free=600.0, copy_from_share=0.75)
    said = words(lot)
    assert "7 blocks not copied yet, in 2 lots: why so." in said
    assert (
        "600 frames were free there, of the first lot. They are looked at again when 75% of all frames are "
        "taken, or nobody computes." in said
    )


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
