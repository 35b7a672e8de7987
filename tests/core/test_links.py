"""What goes first on a link, what makes way, and what is shed."""

from itertools import pairwise

import pytest

from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import DomainId, Retention, SequenceState, Tier, Urgency
from tests.core.caller import Caller
from tests.core.ops import allocate, free, swap_in, swap_out
from tests.core.world import World, keys_of, make_store, text

LOAD, READ = (Tier.CPU, Tier.GPU), (Tier.DISK, Tier.CPU)
COPY, WRITE = (Tier.GPU, Tier.CPU), (Tier.CPU, Tier.DISK)


def caller_of(**sizes: float) -> Caller:
    return Caller(World(make_store(**({"gpu_frames": 16, "cpu_frames": 16, "disk_frames": 32} | sizes))))  # type: ignore[arg-type]


def urgencies(caller: Caller, link: tuple[Tier, Tier]) -> list[Urgency]:
    return [moving.transfer.urgency for moving in caller.world.moving(*link)]


def shed(caller: Caller) -> tuple[int, ...]:
    return tuple(tier.blocks_shed for tier in caller.world.store.usage().tiers)


def waiting(caller: Caller, link: tuple[Tier, Tier], urgency: Urgency) -> int:
    lanes = caller.world.store.usage().lanes
    (lane,) = [each for each in lanes if ((each.source, each.target), each.urgency) == (link, urgency)]
    return lane.blocks_waiting


def swapped(caller: Caller, count: int, blocks: int = 1) -> list[int]:
    """Sequences that lie in the CPU tier, to be loaded."""
    numbers = list(range(100, 100 + count))
    for number in numbers:
        caller.begin(number, text(number, 4 * blocks))
        caller.step(swap_out(number, 4 * blocks))
        caller.step()
    caller.world.drain()
    assert all(caller.state(number) is SequenceState.SWAPPED for number in numbers)
    return numbers


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


# -------------------------------------------------------------------------- what is shed


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
