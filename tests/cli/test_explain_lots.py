"""Lots of blocks in words: what left a tier, what goes to disk and what does not."""

import pytest

from kvstore.v1 import kvstore_pb2 as pb
from tests.cli.test_explain_words import words


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
