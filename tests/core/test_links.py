"""What goes first on a link, and what makes way."""

from itertools import pairwise

import pytest

from kvstore.core.types import Retention, SequenceState, Tier, Urgency
from tests.core.caller import Caller
from tests.core.links import COPY, LOAD, WRITE, caller_of, swapped, urgencies, waiting
from tests.core.ops import allocate, free, swap_in, swap_out
from tests.core.world import keys_of, text

# ------------------------------------------------------------------------- who goes first


def test_each_kind_of_transfer_says_how_urgent_it_is() -> None:
    caller = caller_of()
    caller.cache(text(1, 16), session="s")
    assert urgencies(caller, COPY) == [Urgency.BACKGROUND]
    caller.world.end_one()
    assert urgencies(caller, WRITE) == [Urgency.BACKGROUND]
    caller.world.drain()
    caller.begin(1, text(2, 16))
    caller.step(swap_out(1, 16))
    caller.step()
    assert urgencies(caller, COPY) == [Urgency.NEEDED]
    caller.world.drain()
    caller.step(swap_in(1))
    assert not caller.world.under_way or urgencies(caller, LOAD) == [Urgency.ASKED]


def test_background_transfers_take_no_place_of_those_that_somebody_waits_for() -> None:
    """As many copies of cached blocks are under way as may be: a swap-out begins all the same."""
    caller = caller_of(gpu_frames=32, cpu_frames=32, transfer_blocks_max=1, transfers_per_link_max=2)
    caller.begin(1, text(1, 8))
    caller.cache(text(2, 32))
    assert urgencies(caller, COPY) == [Urgency.BACKGROUND] * 2
    caller.step(swap_out(1, 8))
    caller.step()
    assert urgencies(caller, COPY) == [Urgency.BACKGROUND] * 2 + [Urgency.NEEDED] * 2


def test_case_6_18_swap_ins_are_not_stuck_behind_two_hundred_blocks_on_their_way_down() -> None:
    caller = caller_of(
        gpu_frames=256, cpu_frames=512, disk_frames=512, transfer_blocks_max=1, transfers_per_link_max=5
    )
    numbers = swapped(caller, 5)
    caller.allocate(1, 4 * 251)
    caller.step(free(1))
    for number in range(2, 7):
        caller.cache(text(number, 160), session=f"s{number}")
    while len(caller.world.moving(*WRITE)) < 1 or waiting(caller, WRITE, Urgency.BACKGROUND) < 10:
        caller.world.end(caller.world.moving(*COPY)[0])
    behind = sum(waiting(caller, link, Urgency.BACKGROUND) for link in (COPY, WRITE))
    assert behind > 150
    caller.step(*[swap_in(number) for number in numbers])
    assert all(caller.state(n) in (SequenceState.SWAPPING_IN, SequenceState.RESIDENT) for n in numbers)
    assert urgencies(caller, LOAD) == [Urgency.ASKED] * sum(
        caller.state(n) is SequenceState.SWAPPING_IN for n in numbers
    )
    assert waiting(caller, LOAD, Urgency.ASKED) == 0
    before = len(caller.world.shadow.disk)
    caller.world.drain()
    assert len(caller.world.shadow.disk) == 200 > before


def test_case_6_11_one_load_serves_fifty_prompts_that_share_it() -> None:
    """Each block of the prefix moves once, and all fifty are told when the last one has come."""
    caller = caller_of(gpu_frames=256, cpu_frames=256, disk_frames=0, drop_tokens_max=0)
    world, tokens = caller.world, text(1, 4 * 80)
    caller.cache(tokens)
    world.drain()
    caller.allocate(900, 4 * 256)
    caller.step(free(900, retention=Retention.DISCARD))
    caller.step()
    assert caller.lookup(keys_of(tokens)).blocks_by_tier == (0, 80, 0)
    keys = keys_of(tokens)
    caller.step(*[allocate(number, len(tokens) + 1, keys) for number in range(1, 51)])
    moved: list[int] = []
    while world.under_way:
        moving = world.moving(*LOAD)[0]
        moved += moving.transfer.source_frames
        world.end(moving)
        if world.under_way:
            assert not any(caller.state(number) is SequenceState.RESIDENT for number in range(1, 51))
    assert len(moved) == len(set(moved)) == 80
    assert all(caller.state(number) is SequenceState.RESIDENT for number in range(1, 51))
    assert len(caller.keep_alive().notices) == 50


# ------------------------------------------------------------------------- who makes way


def loading(caller: Caller) -> None:
    """More is asked for than the link takes at once."""
    numbers = swapped(caller, 1, blocks=6)
    caller.allocate(900, 4 * 16)
    caller.step(free(900, retention=Retention.DISCARD))
    caller.step()
    caller.world.drain()
    caller.step(swap_in(numbers[0]))
    assert waiting(caller, LOAD, Urgency.ASKED) > 0


@pytest.mark.parametrize("link", [COPY, WRITE])
def test_while_loads_wait_one_transfer_a_second_is_begun_in_the_background(link: tuple[Tier, Tier]) -> None:
    caller = caller_of(cpu_frames=32, transfer_blocks_max=1, transfers_per_link_max=1)
    world = caller.world
    loading(caller)
    caller.begin(1, text(1, 16), session="s")
    caller.step(free(1))
    caller.step()
    assert not world.moving(*COPY)
    begun: list[float] = []
    for _ in range(70):
        begun += [world.time for each in world.tick(0.1).transfers if (each.source, each.target) == link]
        # All but the load that everybody makes way for.
        for moving in (*world.moving(*COPY), *world.moving(*WRITE)):
            for each in world.end(moving).transfers:
                begun += [world.time] if (each.source, each.target) == link else []
    assert 3 <= len(begun) <= 7
    assert all(after - before >= 0.99 for before, after in pairwise(begun))
    assert waiting(caller, LOAD, Urgency.ASKED) > 0
    world.drain()
    assert len(world.shadow.disk) == 4


def test_copies_that_somebody_waits_for_room_of_don_t_make_way() -> None:
    """A finished turn leaves the GPU by its copy: who waits for its frames makes it urgent."""
    caller = caller_of(transfer_blocks_max=1, transfers_per_link_max=1)
    loading(caller)
    caller.begin(1, text(1, 32), session="s")
    caller.step(free(1))
    caller.step()
    assert not caller.world.moving(*COPY)
    caller.allocate(2, 4 * 10)
    assert urgencies(caller, COPY) == [Urgency.NEEDED]
