"""What the store tells of itself: hits once a sequence, sequences by state, frames by what holds them."""

from kvstore.core.operations import SwapResult
from kvstore.core.types import Activity, Outcome, SequenceState, SwapMode, Tier
from kvstore.core.usage import TierUsage
from tests.core.caller import Caller
from tests.core.ops import activity, allocate, fork, free, swap_out
from tests.core.world import World, keys_of, make_store, text

Told = tuple[int, int, tuple[int, int, int]]


def caller_of(**sizes: int) -> Caller:
    return Caller(World(make_store(**({"gpu_frames": 8, "cpu_frames": 8} | sizes))))


def admitted(caller: Caller) -> list[Told]:
    """Of the last event: sequence, blocks queried, and blocks found by tier."""
    return [(each.sequence, each.blocks_queried, each.tier_blocks) for each in caller.effects.admitted]


def gpu(caller: Caller) -> TierUsage:
    return caller.world.store.usage().tiers[Tier.GPU]


# ----------------------------------------------------------------------------- admissions


def test_7_05_ten_retries_and_ten_preemptions_count_one_lookup() -> None:
    caller = caller_of(gpu_frames=6)
    prompt = text(1, 13)
    caller.cache(prompt[:8])
    caller.allocate(2, 13)  # Four of six frames.
    told: list[Told] = []
    for _ in range(10):
        assert caller.allocate(1, 13, keys_of(prompt)).outcome is Outcome.LATER
        told += admitted(caller)
    assert told == []
    caller.step(free(2))
    assert caller.allocate(1, 13, keys_of(prompt)).tier_tokens == (8, 0, 0)
    told += admitted(caller)
    for _ in range(10):
        caller.one(SwapResult, swap_out(1, 0, SwapMode.DROP))
        told += admitted(caller)
        assert caller.allocate(1, 13).outcome is Outcome.OK
        told += admitted(caller)
    assert told == [(1, 3, (2, 0, 0))]


def test_7_06_what_is_found_by_a_second_look_is_more_and_counts_no_more() -> None:
    caller = caller_of(gpu_frames=12)
    prompt = text(1, 13)
    assert caller.allocate(1, 13, keys_of(prompt)).cached_tokens == 0
    assert admitted(caller) == [(1, 3, (0, 0, 0))]
    caller.one(SwapResult, swap_out(1, 0, SwapMode.DROP))
    caller.cache(prompt, sequence=2)
    assert caller.allocate(1, 13).cached_tokens == 12
    assert admitted(caller) == []


def test_a_retried_step_admits_nobody_again() -> None:
    caller = caller_of()
    caller.allocate(1, 9, keys_of(text(1, 8)))
    assert len(admitted(caller)) == 1
    caller.step_number -= 1
    assert caller.allocate(1, 9, keys_of(text(1, 8))).outcome is Outcome.OK
    assert admitted(caller) == []


def test_a_forked_child_has_looked_for_nothing() -> None:
    caller = caller_of()
    caller.allocate(1, 8)
    caller.step(fork(1, 2), swap_out(2, 0, SwapMode.DROP))
    assert caller.allocate(2, 8).outcome is Outcome.OK
    assert admitted(caller) == []


def test_hits_are_told_by_the_tier_of_the_best_copy() -> None:
    caller = caller_of(disk_frames=8)
    prompt = text(1, 13)
    caller.cache(prompt, session="chat")
    caller.world.drain()
    caller.allocate(2, 32)  # All of the GPU: what was cached is below it now.
    caller.step(free(2))
    assert caller.allocate(3, 13, keys_of(prompt)).tier_tokens == (0, 12, 0)
    assert admitted(caller) == [(3, 3, (0, 3, 0))]


# ----------------------------------------------------------------------------- sequences


def test_sequences_are_told_by_state_and_their_moves_are_counted() -> None:
    caller = caller_of(gpu_frames=8, cpu_frames=4)
    for sequence in (1, 2, 3, 4):
        caller.allocate(sequence, 8)
    assert caller.allocate(5, 16).outcome is Outcome.LATER
    usage = caller.world.store.usage().sequences
    assert (usage.resident, usage.dropped, usage.waiting) == (4, 1, 1)
    caller.swap_out(1, 8)
    caller.step()
    assert caller.world.store.usage().sequences.swapping_out == 1
    caller.world.drain()
    caller.swap_out(2, 8)
    caller.world.drain()
    # No room is left below.
    assert caller.swap_out(3, 8).state is SequenceState.DROPPED
    caller.one(SwapResult, swap_out(4, 8, SwapMode.DROP))
    usage = caller.world.store.usage().sequences
    assert (usage.swapped, usage.dropped, usage.resident) == (2, 3, 0)
    assert (usage.swaps_out, usage.drops, usage.drops_for_room, usage.reliefs) == (2, 2, 1, 0)
    caller.swap_in(1)
    usage = caller.world.store.usage().sequences
    assert (usage.swaps_in, usage.swapping_in, usage.swapped) == (1, 1, 1)


def test_what_the_store_moves_by_itself_is_a_relief() -> None:
    caller = caller_of()
    caller.allocate(1, 16)
    caller.write(caller.table(1), text(1, 16))
    caller.rest(1, 16)
    assert caller.world.store.usage().sequences.idle == 1
    caller.allocate(2, 32)
    usage = caller.world.store.usage().sequences
    assert (usage.reliefs, usage.swaps_out, usage.idle) == (1, 1, 0)


# -------------------------------------------------------------------------------- frames


def test_frames_are_told_by_what_holds_them() -> None:
    caller = caller_of(gpu_frames=16)
    prompt = text(1, 9)
    caller.begin(1, prompt)
    caller.step(allocate(2, 9, keys_of(prompt)), allocate(3, 16))
    assert (gpu(caller).frames_used, gpu(caller).frames_idle) == (8, 0)
    # The blocks that it shares with a sequence that runs are not idle.
    caller.step(activity(2, Activity.WAITING, 9))
    assert (gpu(caller).frames_used, gpu(caller).frames_idle) == (8, 1)
    caller.step(activity(1, Activity.PARKED, 9))
    assert gpu(caller).frames_idle == 4
    caller.step(free(3), completed=0 + caller.step_number - 1)
    assert (gpu(caller).frames_used, gpu(caller).frames_limbo) == (8, 4)
    caller.step()
    assert (gpu(caller).frames_used, gpu(caller).frames_limbo, gpu(caller).frames_free) == (4, 0, 12)


def test_what_a_swapped_sequence_claims_is_used_below() -> None:
    caller = caller_of()
    caller.allocate(1, 16)
    caller.write(caller.table(1), text(1, 16))
    caller.swap_out(1, 16)
    caller.step()
    caller.world.drain()
    cpu = caller.world.store.usage().tiers[Tier.CPU]
    assert (cpu.frames_used, cpu.frames_cached, cpu.frames_limbo, cpu.frames_idle) == (4, 0, 0, 0)
    assert gpu(caller).frames_used == 0
