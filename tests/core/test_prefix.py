"""What is found of a prompt, and for whom."""

import pytest

from kvstore.core.types import Outcome, Retention, SwapMode
from tests.core.caller import Caller
from tests.core.ops import commit, end_session, free, swap_out
from tests.core.world import World, keys_of, make_store, text

TOKENS = text(1, 16)
KEYS = keys_of(TOKENS)


@pytest.fixture
def world() -> World:
    return World(make_store(gpu_frames=24, cpu_frames=8))


@pytest.fixture
def caller(world: World) -> Caller:
    return Caller(world)


@pytest.mark.parametrize("common", range(5))
def test_the_longest_common_prefix_is_found(caller: Caller, common: int) -> None:
    """Row 1.06: at every length of a hit the table starts with what was computed."""
    caller.cache(TOKENS)
    prompt = (*TOKENS[: common * 4], *text(2, 9))
    result = caller.allocate(1, len(prompt), keys_of(prompt))
    assert result.cached_tokens == common * 4
    assert result.tier_tokens == (common * 4, 0, 0)
    caller.read(result.block_table, TOKENS[: common * 4])


@pytest.mark.parametrize(("token_count", "cached"), [(16, 12), (17, 16), (13, 12), (12, 8), (4, 0)])
def test_at_least_one_token_is_always_computed(caller: Caller, token_count: int, cached: int) -> None:
    caller.cache(TOKENS)
    result = caller.allocate(1, token_count, KEYS[: token_count // 4])
    assert result.cached_tokens == cached


def test_a_hole_in_the_keys_ends_the_prefix(caller: Caller) -> None:
    caller.cache(TOKENS)
    other = keys_of(text(3, 16))
    assert caller.lookup((KEYS[0], other[1], KEYS[2])).blocks_cached == 1


def test_another_tenant_finds_nothing(caller: Caller) -> None:
    """Rows 8.05 and 8.06, paired: the same tenant hits and the other misses."""
    caller.cache(TOKENS, tenant="a")
    assert caller.lookup(KEYS, tenant="a").blocks_cached == 4
    assert caller.lookup(KEYS).blocks_cached == 4, "a is the default"
    assert caller.lookup(KEYS, tenant="b").blocks_cached == 0
    assert caller.allocate(1, 17, KEYS, tenant="b").cached_tokens == 0


def test_another_namespace_finds_nothing(world: World, caller: Caller) -> None:
    caller.cache(TOKENS)
    assert Caller(world, 2, namespace=2).lookup(KEYS).blocks_cached == 0
    assert Caller(world, 3, namespace=1).lookup(KEYS).blocks_cached == 4


def test_the_same_key_in_two_namespaces_is_two_blocks(world: World, caller: Caller) -> None:
    other = Caller(world, 2, namespace=2)
    caller.cache(TOKENS)
    other.cache(TOKENS)
    assert world.free_frames()[0] == 24 - 8


def test_the_first_commit_of_a_key_wins(world: World, caller: Caller) -> None:
    caller.allocate(1, 16)
    caller.allocate(2, 16)
    caller.step(commit(1, KEYS))
    caller.step(commit(2, KEYS))
    table = caller.table(1)
    caller.step(free(1, 2))
    caller.step()
    assert caller.allocate(3, 17, KEYS).block_table[:4] == table
    assert world.free_frames()[0] == 24 - 5, "the second one's blocks were private and are gone"


def test_first_come_first_served_within_a_step(caller: Caller) -> None:
    caller.allocate(1, 16)
    caller.allocate(2, 16)
    caller.step(commit(2, KEYS[:1]), commit(1, KEYS[:1]))
    assert caller.allocate(3, 5, KEYS[:1]).block_table[0] == caller.table(2)[0]


def test_a_private_duplicate_is_published_when_the_first_is_gone(world: World, caller: Caller) -> None:
    """What hangs on an evicted winner's block brings its own copy of it along."""
    caller.allocate(1, 8)
    caller.allocate(2, 16)
    caller.step(commit(1, KEYS[:2]))
    caller.step(commit(2, KEYS[:2]))
    caller.step(free(1, retention=Retention.DISCARD))
    caller.step()
    assert caller.lookup(KEYS).blocks_cached == 0
    caller.step(commit(2, KEYS[2:], 2))
    assert caller.lookup(KEYS).blocks_cached == 4
    assert caller.allocate(3, 17, KEYS).block_table[:4] == caller.table(2)


def test_a_private_duplicate_published_later_belongs_to_its_session(world: World, caller: Caller) -> None:
    caller.allocate(1, 8)
    caller.allocate(2, 16, session="s")
    caller.step(commit(1, KEYS[:2]))
    caller.step(commit(2, KEYS[:2]))
    caller.step(free(1, retention=Retention.DISCARD))
    caller.step(commit(2, KEYS[2:], 2))
    caller.step(free(2), end_session("s"))
    caller.step()
    assert caller.lookup(KEYS).blocks_cached == 0


def test_case_1_37_allocated_but_never_committed_is_not_found(world: World, caller: Caller) -> None:
    caller.allocate(1, 16, KEYS)
    caller.step(free(1))
    caller.step()
    assert caller.lookup(KEYS).blocks_cached == 0
    assert world.free_frames()[0] == 24


def test_case_1_42_found_after_the_commit_and_not_before(world: World, caller: Caller) -> None:
    other = Caller(world, 2)
    caller.allocate(1, 16, KEYS)
    assert other.lookup(KEYS).blocks_cached == 0
    caller.step(commit(1, KEYS[:2]))
    assert other.lookup(KEYS).blocks_cached == 2
    caller.step(commit(1, KEYS))
    assert other.lookup(KEYS).blocks_cached == 4


def test_case_1_01_a_hit_is_whole_blocks_and_touches_none_that_the_engine_holds(caller: Caller) -> None:
    """A part-filled block is never handed to another, and a growing table keeps its frames."""
    tokens = text(1, 18)
    caller.begin(1, tokens)
    before = caller.table(1)
    result = caller.allocate(2, 18, KEYS)
    assert result.cached_tokens == 16
    assert result.block_table[4] != before[4]
    assert caller.allocate(1, 20).cached_tokens == 0
    assert caller.table(1) == before
    caller.read(before, tokens)


def test_case_1_32_a_part_filled_block_is_never_published(caller: Caller) -> None:
    caller.begin(1, text(1, 14))
    caller.step(free(1))
    caller.step()
    assert caller.lookup(KEYS).blocks_cached == 3


def test_case_1_22_a_lookup_promises_nothing() -> None:
    """Rows 1.07, 1.22 and 2.03: it takes nothing, so it leaks nothing; Allocate says what there is then."""
    caller = Caller(World(make_store(gpu_frames=24)))
    caller.cache(TOKENS)
    assert caller.lookup(KEYS).blocks_cached == 4
    caller.allocate(1, 96)
    caller.step(free(1))
    caller.step()
    assert caller.lookup(KEYS).blocks_cached == 0
    result = caller.allocate(2, 17, KEYS)
    assert (result.outcome, result.cached_tokens) == (Outcome.OK, 0)


def test_a_commit_after_a_drop_leaves_what_was_committed_before_as_it_was(caller: Caller) -> None:
    """Under other keys: the text has changed. What still waits for its fence is published under its own."""
    other = (KEYS[0], keys_of(text(2, 8))[1])
    caller.allocate(1, 8)
    first = caller.table(1)
    caller.step(commit(1, KEYS[:2]), completed=0)
    caller.step(swap_out(1, 8, SwapMode.DROP), completed=0)
    caller.allocate(1, 8, completed=0)
    caller.step(commit(1, other), completed=0)
    caller.step()
    assert caller.allocate(2, 9, KEYS[:2]).block_table[:2] == first
    assert caller.allocate(3, 9, other).block_table[:2] == caller.table(1)


@pytest.mark.parametrize("published", [4, 2, 0])
@pytest.mark.parametrize("places", [(1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 0, 1), (0, 1, 2, 0), (3,)], ids=str)
def test_case_1_40_keys_out_of_their_places_find_nothing_there(
    places: tuple[int, ...], published: int
) -> None:
    """The engine is at fault; what it would read there was computed for other positions."""
    caller = Caller(World(make_store()))
    caller.allocate(9, 16)
    caller.step(commit(9, KEYS[:published]))
    caller.step(commit(9, KEYS), completed=1)
    asked = [KEYS[place] for place in places]
    right = [place for i, place in enumerate(places) if places[: i + 1] == tuple(range(i + 1))]
    assert caller.lookup(asked).blocks_cached == len(right)
    result = caller.allocate(1, 4 * len(asked) + 1, asked)
    assert result.cached_tokens == 4 * len(right)


def test_case_1_40_what_was_committed_behind_a_key_out_of_its_place_stays_private(caller: Caller) -> None:
    caller.cache(TOKENS)
    mixed = (keys_of(text(2, 4))[0], KEYS[2], *keys_of(text(3, 8)))
    caller.allocate(1, 16)
    caller.step(commit(1, mixed))
    caller.step()
    assert caller.lookup((*KEYS[:3], *mixed[2:])).blocks_cached == 3
    assert caller.lookup(mixed).blocks_cached == 1
