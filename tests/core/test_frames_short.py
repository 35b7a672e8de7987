"""LATER: what it says is short is true, and what the store moves by itself to make that room."""

import sys

from kvstore.core.answers import StepAnswer
from kvstore.core.calls import Step
from kvstore.core.operations import AllocateResult
from kvstore.core.types import BlockKey, Outcome, Pressure, SequenceState, StepNumber, Tier
from tests.core.caller import Caller, moves
from tests.core.ops import allocate, commit, free, swap_in, swap_out
from tests.core.world import World, keys_of, make_store, text


def outcomes(answer: StepAnswer) -> list[Outcome]:
    return [result.outcome for result in answer.results if isinstance(result, AllocateResult)]


def caller_of(**sizes: int) -> Caller:
    return Caller(World(make_store(**sizes)))


# ----------------------------------------------------------------- frames_short is true


def test_a_chain_whose_head_was_used_before_its_tail_can_be_evicted_whole() -> None:
    """Copies that end one after the other put the head of a chain before its tail."""
    caller = caller_of(gpu_frames=4, cpu_frames=4, transfer_blocks_max=2)
    caller.cache(text(1, 16))
    world = caller.world
    first, second = world.under_way
    world.end(first)
    world.end(second)
    world.drain()
    result = caller.allocate(1, 16)
    assert (result.outcome, result.frames_short) == (Outcome.OK, 0)


def test_a_prompt_computed_twice_at_once_leaves_no_frame_that_nobody_can_have() -> None:
    """The winner of the first blocks has gone; the loser's next block hangs on the winner's."""
    caller = caller_of(gpu_frames=5)
    keys = keys_of(text(1, 12))
    caller.step(allocate(1, 8), allocate(2, 12))
    caller.step(commit(1, keys[:2]))
    caller.step(commit(2, keys))
    caller.step(free(1))
    caller.step()
    result = caller.allocate(2, 16)
    assert result.outcome is Outcome.OK or result.frames_short > 0, "no room comes, and none is promised"


def test_a_parent_whose_copy_failed_does_not_hold_its_frame_for_ever() -> None:
    """Its child has a copy below, it has none: it could never leave the GPU."""
    caller = caller_of(gpu_frames=4, cpu_frames=4, transfer_blocks_max=1)
    caller.cache(text(1, 8))
    world = caller.world
    head, tail = world.under_way
    world.end(head, failed=[0])
    world.end(tail, failed=[])
    world.drain()
    for _ in range(3):
        result = caller.allocate(1, 16)
        world.tick()
    assert result.outcome is Outcome.OK or result.frames_short > 0


def test_room_that_the_store_makes_by_dropping_another_engines_sequence_comes() -> None:
    one = caller_of(gpu_frames=4)
    two = Caller(one.world, 2)
    two.allocate(1, 16)
    two.rest(1, 16)
    two.keep_alive()
    result = one.allocate(1, 16)
    assert (result.outcome, result.frames_short) == (Outcome.LATER, 0)
    two.keep_alive()
    assert one.allocate(1, 16).outcome is Outcome.OK


def caller_with_a_cached_prompt_below(rest: bool = False) -> tuple[Caller, tuple[BlockKey, ...]]:
    """A pool of 10 frames of which a sequence has 5 (it may rest), and 6 cached blocks in the CPU tier."""
    caller = caller_of(gpu_frames=10, cpu_frames=20)
    tokens = text(1, 24)
    caller.cache(tokens)
    caller.world.drain()
    caller.allocate(1, 40)
    caller.step(free(1))
    caller.allocate(2, 12 if rest else 20)
    if rest:
        caller.allocate(3, 8)
        caller.rest(2, 12)
        caller.rest(3, 8)
    caller.step()
    return caller, keys_of(tokens)


def test_blocks_that_two_prompts_of_a_step_share_are_short_once() -> None:
    """6 + 1 of the 10 frames for the first and one more for the second, and 5 are taken."""
    caller, keys = caller_with_a_cached_prompt_below()
    first, second = caller.step(*(allocate(i, 28, keys) for i in (11, 12))).results
    assert isinstance(first, AllocateResult)
    assert isinstance(second, AllocateResult)
    assert (first.frames_short, second.frames_short) == (2, 3)


def test_for_blocks_that_are_shared_nobody_is_moved_twice() -> None:
    """Two frames are short, whoever asks: the sequence of three makes room for both."""
    caller, keys = caller_with_a_cached_prompt_below(rest=True)
    answer = caller.step(*(allocate(i, 28, keys) for i in (11, 12)))
    assert outcomes(answer) == [Outcome.LATER, Outcome.LATER]
    assert [move.sequence for move in moves(answer.notices)] == [2]


# ------------------------------------------------------- what the store moves by itself


def test_the_store_moves_waiting_and_parked_sequences_of_low_priority_first() -> None:
    caller = caller_of(gpu_frames=8, cpu_frames=16, drop_tokens_max=0)
    caller.allocate(1, 8, priority=2)
    caller.allocate(2, 8, priority=1)
    caller.allocate(3, 8, priority=0)
    for sequence in (1, 2):
        caller.rest(sequence, 8)
    answer = caller.step(allocate(4, 16))
    assert [caller.state(i) for i in (1, 2, 3)] == [
        SequenceState.RESIDENT,
        SequenceState.SWAPPING_OUT,
        SequenceState.RESIDENT,
    ]
    assert [move.sequence for move in moves(answer.notices)] == [2]
    caller.world.drain()
    assert caller.allocate(4, 16).outcome is Outcome.OK


def test_a_running_sequence_is_never_moved_by_the_store() -> None:
    caller = caller_of(gpu_frames=4, cpu_frames=8)
    caller.allocate(1, 16)
    result = caller.allocate(2, 16)
    assert (result.outcome, result.frames_short) == (Outcome.LATER, 4)
    assert caller.state(1) is SequenceState.RESIDENT


def test_pressure_is_full_while_somebody_waits() -> None:
    caller = caller_of(gpu_frames=4)
    caller.allocate(1, 16)
    caller.allocate(2, 4)
    assert caller.world.store.usage().tiers[Tier.GPU].pressure is Pressure.FULL
    caller.step(free(1))
    caller.allocate(2, 4)
    caller.world.tick(0.2)
    assert caller.world.store.usage().tiers[Tier.GPU].pressure is Pressure.LOW


def test_swap_in_that_finds_no_room_is_later_and_says_what_is_short() -> None:
    caller = caller_of(gpu_frames=4, cpu_frames=4)
    caller.allocate(1, 12)
    caller.step(swap_out(1, 12))
    caller.world.drain()
    caller.allocate(2, 12)
    result = caller.swap_in(1)
    assert (result.outcome, result.state, result.frames_short) == (Outcome.LATER, SequenceState.SWAPPED, 2)
    caller.step(free(2), swap_in(1))
    caller.world.drain()
    assert caller.state(1) is SequenceState.RESIDENT


def test_who_waits_costs_no_more_when_many_wait() -> None:
    """Each request looks at those ahead of it once for the whole step, not each at all of them."""

    def calls(waiting: int) -> int:
        caller = caller_of(gpu_frames=4)
        caller.allocate(1, 16)
        count = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(note)
        try:
            caller.world.store.handle(
                Step(
                    time=caller.world.time,
                    engine=caller.id,
                    step=StepNumber(caller.step_number + 1),
                    completed_step=StepNumber(caller.step_number),
                    operations=tuple(allocate(1000 + i, 4) for i in range(waiting)),
                )
            )
        finally:
            sys.setprofile(None)
        return count

    few, many = calls(64), calls(256)
    assert many < 5 * few
