"""What finds no room on its way down: what of it waits, what is shed, and what is asked for again."""

from itertools import pairwise

import pytest

from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import DomainId, Retention, SequenceState, Tier, Urgency
from tests.core.caller import Caller
from tests.core.links import COPY, LOAD, WRITE, caller_of, shed, swapped, waiting
from tests.core.ops import free, swap_in, swap_out
from tests.core.world import keys_of, make_store, text


def test_a_swap_that_came_to_nothing_is_cache_and_waits_in_the_background() -> None:
    """Its engine leaves while the copies wait: they go as what a turn leaves, when there is room."""
    caller = caller_of(cpu_frames=8, transfer_blocks_max=1, transfers_per_link_max=1)
    other = Caller(caller.world, 2)
    other.begin(1, text(2, 8))
    caller.begin(1, text(1, 16), session="a")
    caller.step(swap_out(1, 16), completed=caller.step_number - 1)
    caller.detach()
    other.step(swap_out(1, 8))
    assert other.state(1) is SequenceState.SWAPPING_OUT
    first, second = caller.world.moving(*COPY)
    caller.world.end(first)
    caller.world.end(second)
    # The other holds two frames, and two are kept for passage and two in use.
    lanes = waiting(caller, COPY, Urgency.NEEDED), waiting(caller, COPY, Urgency.BACKGROUND)
    assert lanes == (0, 2)
    other.step(free(1))
    other.step()
    caller.world.drain()
    assert caller.world.store.usage().tiers[Tier.DISK].blocks_moved_in == 4


def test_what_a_full_queue_can_not_take_is_shed_and_counted() -> None:
    caller = caller_of(queue_blocks_max=5, transfer_blocks_max=1, transfers_per_link_max=1)
    caller.cache(text(1, 32))
    assert waiting(caller, COPY, Urgency.BACKGROUND) == 4
    assert shed(caller) == (0, 3, 0)
    caller.world.drain()
    assert caller.world.free_frames()[1] == 16 - 5


def test_writes_are_shed_before_copies_and_asked_for_again() -> None:
    caller = caller_of(gpu_frames=32, cpu_frames=32, queue_blocks_max=4, transfer_blocks_max=4, writes_max=1)
    world = caller.world
    caller.cache(text(1, 16), session="s")
    world.end(world.moving(*COPY)[0])
    caller.cache(text(2, 16), session="t")
    world.end(world.moving(*COPY)[0])
    assert waiting(caller, WRITE, Urgency.BACKGROUND) == 4
    caller.cache(text(3, 16), session="u")
    caller.cache(text(4, 16), session="v")
    assert shed(caller) == (0, 0, 4)
    assert waiting(caller, WRITE, Urgency.BACKGROUND) == 0
    for _ in range(50):
        world.tick(0.5)
        world.drain()
    assert len(world.shadow.disk) == 16


def test_the_coldest_of_what_has_no_copy_on_disk_is_written_first_and_after_what_it_hangs_on() -> None:
    caller = caller_of(cpu_frames=32, queue_blocks_max=1, transfer_blocks_max=2, transfers_per_link_max=1)
    world = caller.world
    for number in (1, 2):
        caller.cache(text(number, 16), session=f"s{number}")
        world.drain()
    for _ in range(60):
        world.tick(1.0)
        world.drain()
    names = [key for _, _, key in world.shadow.disk]
    one, two = keys_of(text(1, 16)), keys_of(text(2, 16))
    # Of each the first block went down when its turn ended, the rest was shed.
    assert names == [one[0], two[0], *one[1:], *two[1:]]


def test_a_write_that_failed_is_tried_again_less_and_less_often() -> None:
    caller = caller_of()
    world = caller.world
    caller.cache(text(1, 16), session="s")
    world.end(world.moving(*COPY)[0])
    tried: list[float] = []
    for _ in range(700):
        for moving in world.moving(*WRITE):
            tried.append(world.time)
            world.end(moving, failed=[0, 1, 2, 3])
        world.tick(0.1)
    pauses = [after - before for before, after in pairwise(tried)]
    assert len(tried) in range(5, 9)
    assert all(later > 1.5 * sooner for sooner, later in pairwise(pauses[1:]))
    while not world.moving(*WRITE):
        world.tick(1.0)
    world.drain()
    assert len(world.shadow.disk) == 4


def test_above_the_high_watermark_writes_make_way_for_nobody() -> None:
    """Most of the CPU tier has no other copy: to evict any of it would lose it."""
    sizes = {"gpu_frames": 100, "cpu_frames": 100, "disk_frames": 100}
    for blocks, writes in ((32, 0), (45, 1)):
        caller = caller_of(
            **sizes, transfer_blocks_max=1, transfers_per_link_max=1, writes_max=1, queue_blocks_max=100
        )
        world = caller.world
        numbers = swapped(caller, 1, blocks=36)
        caller.cache(text(1, 4 * blocks), session="s")
        while world.moving(*COPY):
            world.end(world.moving(*COPY)[0])
        caller.allocate(900, 400)
        caller.step(free(900, retention=Retention.DISCARD))
        caller.step()
        caller.step(swap_in(numbers[0]))
        assert waiting(caller, LOAD, Urgency.ASKED) > 0
        # One had begun before the load.
        world.end(world.moving(*WRITE)[0])
        assert not world.moving(*WRITE)
        world.tick(0.1)
        assert len(world.moving(*WRITE)) == writes


def test_what_is_wanted_on_disk_is_spared_where_a_copy_of_something_else_can_go() -> None:
    caller = caller_of(cpu_frames=8, gpu_frames=32)
    world = caller.world
    caller.cache(text(1, 8), session="s")
    world.end(world.moving(*COPY)[0])
    world.end(world.moving(*WRITE)[0], failed=[0, 1])
    for number in range(2, 8):
        caller.cache(text(number, 8))
        world.drain()
    assert world.free_frames()[1] == 0
    blocks = world.store.memory.blocks
    found = [
        world.store.memory.prefix.find(domain, key)
        for domain in _domains(caller)
        for key in keys_of(text(1, 8))
    ]
    assert all(row is not None and blocks.valid[Tier.CPU][row] for row in found)


def test_what_is_forgotten_before_it_came_to_disk_is_counted() -> None:
    caller = caller_of(cpu_frames=4, gpu_frames=8)
    world = caller.world
    for number in range(1, 5):
        caller.cache(text(number, 8), session=f"s{number}")
        while world.under_way:
            moving = world.under_way[0]
            bad = range(len(moving.transfer.keys)) if moving.transfer.target is Tier.DISK else []
            world.end(moving, failed=bad)
    caller.allocate(900, 32)
    assert shed(caller)[Tier.DISK] > 0


def _domains(caller: Caller) -> set[DomainId]:
    return {domain for (domain, _), _ in caller.world.store.memory.prefix.entries()}


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue_blocks_max": 0},
        {"transfer_blocks_max": 0},
        {"transfers_per_link_max": 0},
        {"writes_max": 0},
        {"write_blocks_max": -1},
        {"background_wait_seconds": -1.0},
        {"background_wait_seconds": float("inf")},
    ],
)
def test_numbers_that_can_not_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigInvalid, match=next(iter(wrong))):
        make_store(**wrong)  # type: ignore[arg-type]
