"""Lots of blocks that were decided of: what is told of them, and that lots which are alike are one note."""

import weakref

import numpy as np
import pytest
from numpy.typing import NDArray

from kvstore.core.decisions import KEPT_MAX, OWNERS_MAX, Decisions, Lot
from kvstore.core.operations import Decision
from kvstore.core.ports import Figures
from kvstore.core.store import Store
from kvstore.core.types import SwapMode
from kvstore.policy.swap import LengthThreshold
from kvstore.policy.worth import Worth
from tests.core.caller import Caller
from tests.core.ops import allocate, end_session, swap_out
from tests.core.three_tiers import KEYS, disk_only
from tests.core.word import Word, caller_with, decisions, told
from tests.core.world import World, make_store, text


def lot_of(owners: NDArray[np.int64], reason: str = "x", kind: str = "evict") -> Lot:
    return Lot(kind=kind, chosen="x", reason=reason, tenants=(), counts=(("blocks", float(owners.size)),))


def test_of_a_large_lot_no_more_than_some_owners_stay_in_memory() -> None:
    owners = np.arange(10 * OWNERS_MAX)
    whole = weakref.ref(owners)
    memory = Decisions()
    memory.note_lot(0.0, lot_of(owners), owners)
    memory.note_lot(0.0, lot_of(owners), owners)
    del owners
    assert whole() is None
    [note] = memory.notes["evict"]
    assert (note.lots, note.owners.size, len(note.by_owner())) == (2, OWNERS_MAX, OWNERS_MAX)


def test_the_memory_of_decisions_is_bounded_and_each_kind_has_its_own() -> None:
    memory = Decisions()
    memory.note(Decision(time=0.0, kind="swap", chosen="drop"))
    for number in range(KEPT_MAX + 10):
        memory.note_lot(0.0, lot_of(np.zeros(1, np.int64), reason=str(number)), np.zeros(1, np.int64))
    assert len(memory.notes["evict"]) == KEPT_MAX
    assert len(memory.notes["swap"]) == 1
    assert memory.notes["evict"][-1].decision.reason == str(KEPT_MAX + 9)


def test_lots_that_are_alike_and_follow_one_another_are_one_note() -> None:
    memory = Decisions()
    asked: list[float] = []

    def note(time: float, reason: str, owner: int) -> None:
        owners = np.array([owner, owner], np.int64)

        def figures() -> Figures:
            asked.append(time)
            return (("first", time),)

        memory.note_lot(time, lot_of(owners, reason), owners, figures)

    for tenth in range(5):
        note(tenth / 10, "x", 1 + tenth % 2)
    note(0.5, "y", 1)
    # Too late after the one before; and then, though none is, too long after the first.
    for time in (3.0, 3.9, 4.8, 5.7, 6.6, 7.5, 8.4, 9.3, 10.2, 11.1, 12.0, 12.9, 13.8):
        note(time, "y", 1)
    notes = memory.notes["evict"]
    assert [(each.decision.reason, each.lots, each.counts["blocks"]) for each in notes] == [
        ("x", 5, 10.0),
        ("y", 1, 2.0),
        ("y", 12, 24.0),
        ("y", 1, 2.0),
    ]
    assert (notes[0].decision.time, notes[0].until, notes[0].by_owner()) == (0.0, 0.4, {1: 6, 2: 4})
    # What costs more to tell is asked for once a note.
    assert asked == [0.0, 0.5, 3.0, 13.8]
    assert notes[0].decision.inputs == (("first", 0.0),)


def test_what_runs_and_grows_evicts_in_one_note_for_the_sequences_that_it_names() -> None:
    caller = caller_with(Word(), gpu_frames=10, cpu_frames=0)
    caller.cache(text(1, 24), 1, session="old")
    caller.allocate(2, 8, session="chat")
    caller.allocate(3, 8)
    for tokens in (12, 16, 20):
        caller.step(allocate(2, tokens))
        caller.step(allocate(3, tokens))
    [grown] = [each for each in told(caller, kind="evict") if "next tokens" in each.decision.reason]
    assert (grown.lots, dict(grown.decision.inputs)["blocks"]) == (6, 6.0)
    assert {(each.sequence, each.session) for each in grown.room_for} == {(2, "chat"), (3, "")}
    assert [(each.session, each.blocks) for each in grown.blocks_of] == [("old", 6)]
    # It concerns those whose blocks went, and those for whom they did.
    assert grown.number in [each.number for each in told(caller, session="old")]
    assert grown.number in [each.number for each in told(caller, session="chat")]
    assert grown.number in [each.number for each in told(caller, sequence=3)]
    assert grown.number not in [each.number for each in told(caller, sequence=1)]


@pytest.mark.parametrize(("swaps", "reason"), [(True, "a sequence is swapped out"), (False, "pass through")])
def test_each_reason_for_which_the_cpu_tier_makes_room_has_words_of_its_own(swaps: bool, reason: str) -> None:
    caller = disk_only(cpu_frames=8, gpu_frames=16, disk_frames=64)
    for number in range(100, 103):
        caller.cache(text(number, 16), number, session="chat")
    caller.world.drain()
    if swaps:
        caller.allocate(1, 16)
        caller.step(swap_out(1, 16, SwapMode.KEEP))
    else:
        caller.allocate(1, 17, KEYS)
    caller.world.drain()
    found = [each for each in told(caller, kind="evict") if reason in each.decision.reason]
    assert found
    assert [[party.sequence for party in each.room_for] for each in found] == [[1]]


def test_what_a_lot_was_worth_and_what_stays_is_told() -> None:
    world = World(Store(make_store(gpu_frames=12, cpu_frames=0).config, Worth(), LengthThreshold(8)))
    caller = Caller(world)
    caller.cache(text(1, 16), 1, session="over")
    caller.step(end_session("over"))
    for number in (2, 3):
        caller.world.time += 1.0
        caller.cache(text(number, 16), number)
    caller.allocate(4, 24)
    [lot] = decisions(caller, kind="evict")
    figures = dict(lot.inputs)
    assert lot.chosen == "from the GPU by Worth"
    assert 0 <= figures["worth_least_reads_per_second"] <= figures["worth_most_reads_per_second"]
    assert figures["worth_kept_reads_per_second"] >= figures["worth_least_reads_per_second"] > 0
