"""Bad input is refused before anything has changed: the whole store is compared."""

import pytest

from kvstore.core.errors import (
    ConfigInvalid,
    EngineExpired,
    FieldInvalid,
    KVStoreError,
    SequenceUnknown,
    TenantRefused,
)
from kvstore.core.operations import Free, Operation
from kvstore.core.types import Activity, BlockKey, SequenceId, SequenceState
from tests.core.caller import Caller
from tests.core.ops import activity, allocate, commit, end_session, fork, free, grow, swap_in, swap_out
from tests.core.snapshot import snapshot
from tests.core.world import World, keys_of, make_store, text

KEYS = keys_of(text(1, 16))
OTHER_KEYS = keys_of(text(2, 20))
SHORT = BlockKey(b"short")
# On disk it stands for none.
ZERO = BlockKey(bytes(32))

# In a world where sequence 1 has 10 tokens, of which one block is committed, and 5 is on its way in.
REFUSALS: dict[str, tuple[tuple[Operation, ...], type[KVStoreError], str]] = {
    "too many operations": ((free(),) * 9, FieldInvalid, "operations"),
    "no tokens": ((allocate(7, 0),), FieldInvalid, "allocate.token_count"),
    "too many tokens": ((allocate(7, (1 << 24) + 1),), FieldInvalid, "allocate.token_count"),
    "more keys than full blocks": ((allocate(7, 7, KEYS[:2]),), FieldInvalid, "allocate.block_keys"),
    "key of a wrong length": ((allocate(7, 8, (KEYS[0], SHORT)),), FieldInvalid, "allocate.block_keys[1]"),
    "key of nothing but zeros": ((allocate(7, 8, (KEYS[0], ZERO)),), FieldInvalid, "allocate.block_keys[1]"),
    "more known blocks than blocks": ((allocate(1, 10, known_blocks=4),), FieldInvalid, "known_blocks"),
    "session too long": ((allocate(7, 4, session="é" * 129),), FieldInvalid, "allocate.session"),
    "tenant not allowed": ((allocate(7, 4, tenant="c"),), TenantRefused, "allocate.tenant"),
    "allocated and freed": ((allocate(1, 12), free(1)), FieldInvalid, "allocate.sequence"),
    "new and freed": ((allocate(7, 4), free(7)), FieldInvalid, "allocate.sequence"),
    "grown in uneven columns": (
        (grow([1], [], [1]),),
        FieldInvalid,
        "grow",
    ),
    "grown to no tokens": ((grow([1, 5], [12, 0], [3, 0]),), FieldInvalid, "grow.token_counts[1]"),
    "grown by known blocks": ((grow([1], [12], [4]),), FieldInvalid, "grow.known_blocks[0]"),
    "grown and freed": ((grow([5, 1], [8, 12], [1, 1]), free(1)), FieldInvalid, "grow.sequences[1]"),
    "grown, too many": ((grow(range(20, 29), [4] * 9, [0] * 9),), FieldInvalid, "operations"),
    "grown, too many new": ((grow(range(20, 26), [4] * 6, [0] * 6),), FieldInvalid, "grow.sequences["),
    "too many sequences": (tuple(allocate(10 + i, 4) for i in range(4)), FieldInvalid, "operations[3]"),
    "too many children": ((fork(1, *range(100, 165)),), FieldInvalid, "fork.children"),
    "too many sequences by fork": ((fork(1, 20, 21, 22, 23),), FieldInvalid, "fork.children"),
    "commit of an unknown sequence": ((commit(9, KEYS),), SequenceUnknown, "commit.sequence"),
    "commit behind a gap": ((commit(1, KEYS[2:3], 2),), FieldInvalid, "commit.first_block"),
    "commit of a part-filled block": ((commit(1, KEYS[:3]),), FieldInvalid, "commit.block_keys"),
    "commit under another key": ((commit(1, OTHER_KEYS[:2]),), FieldInvalid, "commit.block_keys"),
    "commit with a short key": ((commit(1, (SHORT,), 1),), FieldInvalid, "commit.block_keys[0]"),
    "commit with a key of zeros": ((commit(1, (ZERO,), 1),), FieldInvalid, "commit.block_keys[0]"),
    "commit into what is loading": ((commit(5, OTHER_KEYS),), FieldInvalid, "commit.sequence"),
    "fork of an unknown sequence": ((fork(9, 10),), SequenceUnknown, "fork.parent"),
    "fork of itself": ((fork(1, 8, 1),), FieldInvalid, "fork.children"),
    "swap of an unknown sequence": ((swap_in(9),), SequenceUnknown, "swap.sequence"),
    "swap of what this step allocates": ((allocate(7, 4), swap_in(7)), SequenceUnknown, "swap.sequence"),
    "swap of what this step frees": ((swap_out(1), free(1)), SequenceUnknown, "swap.sequence"),
    "more filled than allocated": ((swap_out(1, 11),), FieldInvalid, "swap.filled_tokens"),
    "activity of an unknown one": ((activity(9, Activity.WAITING),), SequenceUnknown, "update_activity"),
    "activity of a freed one": ((free(1), activity(1, Activity.PARKED)), SequenceUnknown, "update_activity"),
    "resting with too many filled": ((activity(1, Activity.WAITING, 11),), FieldInvalid, "filled_tokens"),
    "session without a name": ((end_session(""),), FieldInvalid, "end_session.session"),
    "session of a foreign tenant": ((end_session("s", "c"),), TenantRefused, "end_session.tenant"),
    "too many freed": (
        (Free(sequences=tuple(SequenceId(i) for i in range(4097))),),
        FieldInvalid,
        "free.sequences",
    ),
    "good ones before a bad one": (
        (commit(1, KEYS[:2]), fork(1, 8), free(2), activity(1, Activity.WAITING), swap_in(9)),
        SequenceUnknown,
        "operations[4]",
    ),
}


def crowded_world() -> Caller:
    """Sequences in several states, work in flight, a transfer under way."""
    world = World(make_store(gpu_frames=12, cpu_frames=8, sequences_max=6, operations_max=8))
    caller = Caller(world)
    caller.cache(text(2, 16), 4)
    world.drain()
    caller.allocate(3, 48)
    caller.step(free(3))
    caller.allocate(1, 10, KEYS[:2])
    caller.step(commit(1, KEYS[:1]))
    caller.allocate(2, 5)
    assert caller.allocate(5, 21, OTHER_KEYS).state is SequenceState.SWAPPING_IN
    assert world.under_way
    return caller


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_changes_nothing(name: str) -> None:
    operations, error, field = REFUSALS[name]
    caller = crowded_world()
    before = snapshot(caller.world.store)
    with pytest.raises(error) as caught:
        caller.step(*operations, completed=caller.step_number - 1)
    assert field in caught.value.field
    assert caught.value.remedy, "says what to do"
    assert snapshot(caller.world.store) == before


def test_two_commits_of_a_step_that_name_a_block_differently_are_refused() -> None:
    caller = crowded_world()
    with pytest.raises(FieldInvalid, match="block_keys"):
        caller.step(commit(1, KEYS[:2]), commit(1, OTHER_KEYS[1:2], 1))


def test_two_commits_of_a_step_may_follow_each_other() -> None:
    caller = crowded_world()
    caller.step(allocate(1, 16))
    caller.step(commit(1, KEYS[1:2], 1), commit(1, KEYS[1:4], 1))
    caller.step()
    assert caller.lookup(KEYS).blocks_cached == 4


def test_a_commit_may_be_repeated() -> None:
    caller = crowded_world()
    for _ in range(3):
        caller.step(commit(1, KEYS[:2]))
    assert caller.sequence(1).committed == 2


def test_lookup_of_a_foreign_tenant_is_refused() -> None:
    with pytest.raises(TenantRefused):
        crowded_world().lookup(KEYS, tenant="c")


def test_an_engine_that_is_not_there_is_told_so() -> None:
    caller = crowded_world()
    caller.detach()
    before = snapshot(caller.world.store)
    for call in (caller.step, caller.keep_alive, lambda: caller.lookup(KEYS)):
        with pytest.raises(EngineExpired, match="attach again"):
            call()
    assert snapshot(caller.world.store) == before


def test_of_a_sequence_that_the_store_has_dropped_there_is_nothing_to_commit() -> None:
    """What the store did by itself never fails a step."""
    caller = Caller(World(make_store(gpu_frames=8)))
    caller.allocate(1, 16)
    caller.rest(1, 16)
    caller.allocate(2, 32)
    assert caller.state(1) is SequenceState.DROPPED
    caller.step(commit(1, KEYS[1:3], 1))
    caller.step()
    assert caller.lookup(KEYS).blocks_cached == 0


@pytest.mark.parametrize(
    ("field", "sizes"),
    [
        ("gpu_frames", {"gpu_frames": 0}),
        ("cpu_frames", {"cpu_frames": -1}),
        ("cpu_frames", {"cpu_frames": 0, "disk_frames": 1}),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(field: str, sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        make_store(**sizes)
    assert caught.value.field == field


def test_a_lookup_by_a_key_of_a_wrong_length_is_refused() -> None:
    caller = Caller(World(make_store()))
    caller.cache(text(1, 16))
    with pytest.raises(FieldInvalid) as refused:
        caller.lookup([KEYS[0], SHORT])
    assert refused.value.field == "block_keys[1]"
