"""Want of memory is an outcome: NEVER, LATER with what is short, and tickets in order."""

from kvstore.core.admission import PATIENCE_SECONDS
from kvstore.core.answers import StepAnswer
from kvstore.core.operations import AllocateResult
from kvstore.core.types import Outcome, SequenceState
from tests.core.caller import Caller
from tests.core.ops import allocate, free, swap_out
from tests.core.world import World, keys_of, make_store, text


def outcomes(answer: StepAnswer) -> list[Outcome]:
    return [result.outcome for result in answer.results if isinstance(result, AllocateResult)]


def caller_of(**sizes: int) -> Caller:
    return Caller(World(make_store(**sizes)))


# --------------------------------------------------------------------- never and later


def test_what_is_larger_than_the_pool_is_never_and_makes_no_sequence() -> None:
    caller = caller_of(gpu_frames=4)
    result = caller.allocate(1, 17)
    assert (result.outcome, result.state, result.block_table) == (Outcome.NEVER, SequenceState.DROPPED, ())
    assert not caller.world.store.membership.engines[caller.id].sequences
    assert caller.allocate(1, 16).outcome is Outcome.OK


def test_growth_beyond_the_pool_is_never_and_changes_nothing() -> None:
    caller = caller_of(gpu_frames=4)
    caller.allocate(1, 16)
    result = caller.allocate(1, 17)
    assert (result.outcome, result.state) == (Outcome.NEVER, SequenceState.RESIDENT)
    assert caller.sequence(1).token_count == 16


def test_later_says_how_many_frames_are_short() -> None:
    caller = caller_of(gpu_frames=4)
    caller.allocate(1, 12)
    result = caller.allocate(2, 12)
    assert (result.outcome, result.state, result.frames_short) == (Outcome.LATER, SequenceState.DROPPED, 2)
    assert caller.world.free_frames()[0] == 1, "a waiting sequence holds nothing"


def test_later_with_nothing_short_means_that_room_is_on_its_way() -> None:
    caller = caller_of(gpu_frames=4)
    caller.allocate(1, 12)
    caller.step(completed=0)
    answer = caller.step(free(1), allocate(2, 12), completed=1)
    assert isinstance(answer.results[1], AllocateResult)
    assert (answer.results[1].outcome, answer.results[1].frames_short) == (Outcome.LATER, 0)
    assert caller.allocate(2, 12).outcome is Outcome.OK


def test_room_that_a_swap_out_is_making_is_on_its_way() -> None:
    caller = caller_of(gpu_frames=4, cpu_frames=4)
    caller.allocate(1, 12)
    caller.step(swap_out(1, 12))
    result = caller.allocate(2, 12)
    assert (result.outcome, result.frames_short) == (Outcome.LATER, 0)
    caller.world.drain()
    assert caller.allocate(2, 12).outcome is Outcome.OK


def test_growth_that_finds_no_room_leaves_the_sequence_resident() -> None:
    caller = caller_of(gpu_frames=4)
    caller.allocate(1, 8)
    caller.allocate(2, 8)
    result = caller.allocate(1, 12)
    assert (result.outcome, result.state, result.frames_short) == (Outcome.LATER, SequenceState.RESIDENT, 1)
    assert len(caller.table(1)) == 2


def test_a_retry_names_id_and_token_count_alone() -> None:
    caller = caller_of(gpu_frames=8)
    tokens = text(1, 16)
    caller.cache(tokens)
    caller.allocate(2, 28)
    assert caller.allocate(1, 21, keys_of(tokens)).outcome is Outcome.LATER
    caller.step(free(2))
    result = caller.allocate(1, 21)
    assert result.outcome is Outcome.OK
    assert result.cached_tokens == caller.lookup(keys_of(tokens)).blocks_cached * 4 > 0


def test_free_cancels_a_ticket() -> None:
    caller = caller_of(gpu_frames=4)
    caller.allocate(1, 12)
    caller.allocate(2, 12)
    assert caller.allocate(3, 4).outcome is Outcome.LATER
    caller.step(free(2))
    assert caller.allocate(3, 4).outcome is Outcome.OK


def test_a_sequence_that_has_to_come_back_first_is_later() -> None:
    caller = caller_of(gpu_frames=4, cpu_frames=4)
    caller.allocate(1, 8)
    caller.step(swap_out(1, 8))
    assert caller.allocate(1, 12).state is SequenceState.SWAPPING_OUT
    caller.world.drain()
    result = caller.allocate(1, 12)
    assert (result.outcome, result.state) == (Outcome.LATER, SequenceState.SWAPPED)


# --------------------------------------------------------------------------- the queue


def test_two_prompts_of_60_cached_and_10_new_blocks_in_a_pool_of_100() -> None:
    """Both are served, one after the other."""
    world = World(make_store(gpu_frames=100, cpu_frames=200))
    caller = Caller(world)
    prompts = {1: text(1, 70 * 4), 2: text(2, 70 * 4)}
    for tokens in prompts.values():
        caller.cache(tokens[: 60 * 4])
        world.drain()
    answer = caller.step(*(allocate(i, 280, keys_of(tokens)[:69]) for i, tokens in prompts.items()))
    assert outcomes(answer) == [Outcome.OK, Outcome.LATER]
    world.drain()
    assert caller.state(1) is SequenceState.RESIDENT
    caller.read(caller.table(1), prompts[1][:240])
    waiting = caller.allocate(2, 280)
    assert waiting.outcome is Outcome.LATER
    assert waiting.frames_short > 0
    caller.step(free(1))
    result = caller.allocate(2, 280)
    assert (result.outcome, result.cached_tokens) == (Outcome.OK, 240)
    world.drain()
    assert caller.state(2) is SequenceState.RESIDENT
    caller.read(caller.table(2), prompts[2][:240])


def test_two_prompts_with_the_same_60_cached_blocks_are_served_together() -> None:
    world = World(make_store(gpu_frames=100))
    caller = Caller(world)
    tokens = text(1, 240)
    caller.cache(tokens)
    answer = caller.step(*(allocate(i, 280, keys_of(tokens)) for i in (1, 2)))
    assert outcomes(answer) == [Outcome.OK, Outcome.OK]


def test_who_came_first_is_served_first() -> None:
    caller = caller_of(gpu_frames=4)
    caller.allocate(1, 16)
    for waiting in (2, 3, 4):
        caller.allocate(waiting, 8)
    caller.step(free(1))
    assert outcomes(caller.step(allocate(4, 8), allocate(3, 8), allocate(2, 8))) == [
        Outcome.LATER,
        Outcome.OK,
        Outcome.OK,
    ]


def test_a_retry_keeps_its_place() -> None:
    caller = caller_of(gpu_frames=4)
    caller.allocate(1, 16)
    caller.allocate(2, 12)
    caller.allocate(3, 12)
    caller.allocate(2, 12)
    caller.step(free(1))
    assert caller.allocate(3, 12).outcome is Outcome.LATER
    assert caller.allocate(2, 12).outcome is Outcome.OK


def test_small_ones_do_not_starve_a_large_one() -> None:
    """Row 6.02's kin: a stream of small prompts that would fit leaves the room to the large one."""
    caller = caller_of(gpu_frames=8)
    caller.allocate(1, 16)
    caller.allocate(2, 16)
    assert caller.allocate(3, 32).outcome is Outcome.LATER
    caller.step(free(1))
    for small in range(10, 20):
        result = caller.allocate(small, 4)
        assert result.outcome is Outcome.LATER
        assert caller.allocate(3, 32).outcome is Outcome.LATER
    caller.step(free(2))
    assert caller.allocate(3, 32).outcome is Outcome.OK


def test_nor_one_whose_prompt_is_cached_for_the_most_part() -> None:
    """What is cached and lies on the GPU is as much part of what it waits for as what is lacking."""
    caller = caller_of(gpu_frames=10)
    tokens = text(1, 24)
    caller.cache(tokens)
    caller.allocate(1, 8)
    assert caller.allocate(2, 36, keys_of(tokens)).outcome is Outcome.LATER, "9 frames, and 8 are to be had"
    assert caller.allocate(3, 8).outcome is Outcome.LATER
    caller.step(free(1), allocate(2, 36, keys_of(tokens)))
    result = caller.allocate(2, 36)
    assert (result.outcome, result.cached_tokens) == (Outcome.OK, 24)


def test_growth_goes_before_what_waits_to_begin() -> None:
    caller = caller_of(gpu_frames=4)
    caller.allocate(1, 12)
    assert caller.allocate(2, 16).outcome is Outcome.LATER
    assert caller.allocate(1, 16).outcome is Outcome.OK


def test_growth_of_what_was_preempted_since_holds_nobody_up() -> None:
    """As long as it was away, all that grew would have gone the long way, one by one."""
    caller = caller_of(gpu_frames=4, cpu_frames=4)
    caller.allocate(1, 8)
    caller.allocate(2, 8)
    assert caller.allocate(1, 12).outcome is Outcome.LATER
    assert caller.world.store.admission.growth_waits
    caller.step(swap_out(1, 8))
    assert not caller.world.store.admission.growth_waits


def test_case_6_02_what_was_swapped_out_goes_before_what_is_new() -> None:
    caller = caller_of(gpu_frames=4, cpu_frames=4)
    caller.allocate(1, 16)
    caller.step(swap_out(1, 16))
    caller.world.drain()
    caller.allocate(2, 16)
    assert caller.allocate(3, 4).outcome is Outcome.LATER
    assert caller.swap_in(1).outcome is Outcome.LATER
    caller.step(free(2))
    assert caller.allocate(3, 4).outcome is Outcome.LATER
    assert caller.swap_in(1).outcome is Outcome.OK


def test_a_ticket_that_nobody_asks_for_holds_nobody_up_but_keeps_its_place() -> None:
    caller = caller_of(gpu_frames=4)
    caller.allocate(1, 12)
    caller.allocate(2, 16)
    assert caller.allocate(3, 4).outcome is Outcome.LATER
    caller.world.tick(PATIENCE_SECONDS * 1.1)
    assert caller.allocate(3, 4).outcome is Outcome.OK
    assert caller.allocate(2, 16).outcome is Outcome.LATER
    assert caller.allocate(4, 4).outcome is Outcome.LATER
    caller.step(free(1, 3))
    assert caller.allocate(2, 16).outcome is Outcome.OK


def test_the_queue_is_one_for_all_engines() -> None:
    one = caller_of(gpu_frames=4)
    two = Caller(one.world, 2)
    one.allocate(1, 16)
    one.allocate(2, 12)
    two.allocate(1, 12)
    one.step(free(1))
    assert two.allocate(1, 12).outcome is Outcome.LATER
    assert one.allocate(2, 12).outcome is Outcome.OK


def test_an_engine_that_dies_leaves_the_queue() -> None:
    one = caller_of(gpu_frames=4)
    two = Caller(one.world, 2)
    one.allocate(1, 12)
    two.allocate(1, 16)
    assert one.allocate(2, 4).outcome is Outcome.LATER
    two.close_tethers()
    assert one.allocate(2, 4).outcome is Outcome.OK


def test_case_2_11_a_grant_that_fails_midway_takes_nothing() -> None:
    """Cached blocks in the CPU tier, too few frames for the rest: all counts are as before."""
    caller = caller_of(gpu_frames=8, cpu_frames=8)
    tokens = text(1, 16)
    caller.cache(tokens)
    caller.world.drain()
    caller.allocate(2, 24)
    blocks = caller.world.store.memory.blocks

    def held() -> object:
        return caller.world.free_frames(), blocks.refs.tolist(), [frame.tolist() for frame in blocks.frame]

    before = held()
    assert caller.allocate(1, 20, keys_of(tokens)).outcome is Outcome.LATER
    assert held() == before


def test_case_3_20_asking_again_and_again_changes_nothing() -> None:
    """No loop in the store: each ask is one look, and the engine is told what to do."""
    caller = caller_of(gpu_frames=4)
    caller.allocate(1, 16)
    for _ in range(50):
        result = caller.allocate(2, 16)
        assert (result.outcome, result.frames_short) == (Outcome.LATER, 4)
    assert len(caller.world.store.membership.engines[caller.id].sequences) == 2
