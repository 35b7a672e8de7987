"""Blocks that the disk finds bad by itself: no copy that is not there is counted on."""

import pytest

from kvstore.core.losing import stored_rows
from kvstore.core.types import SequenceState, StoredKey, Tier
from kvstore.sim.texts import Content
from tests.core.caller import Caller, moves
from tests.core.ops import commit, free
from tests.core.world import World, keys_of, make_store, stored_keys, text

TOKENS = text(1, 16)
KEYS = keys_of(TOKENS)
STORED = stored_keys(TOKENS)
PROMPT = text(1, 17)


def caller_of(*found: Content, **sizes: int) -> Caller:
    """These texts lie on disk when the store starts."""
    world = World(make_store(**({"gpu_frames": 16, "cpu_frames": 16, "disk_frames": 32} | sizes)))
    if found:
        world.find(*found)
    return Caller(world)


def on_disk(caller: Caller) -> int:
    return len(caller.world.shadow.disk)


def stored(caller: Caller) -> int:
    """Blocks whose writes have ended, as the store knows it."""
    return caller.world.store.usage().tiers[Tier.DISK].blocks_moved_in


def lose(caller: Caller, *places: int) -> list[StoredKey]:
    """The disk drops these and says so; what the store has it delete in turn."""
    disk = caller.world.shadow.disk
    mine = {key.key: key for key in disk.find()}
    keys = [mine[KEYS[place]] for place in places]
    for key in keys:
        disk.drop(key)
    effects = caller.world.lose(keys)
    return [key for delete in effects.deletes for key in delete.keys]


def test_what_lay_on_disk_only_is_forgotten_with_all_that_hangs_on_it() -> None:
    caller = caller_of(TOKENS)
    deleted = lose(caller, 1)
    assert {key.key for key in deleted} == set(KEYS[1:])
    assert caller.lookup(KEYS).blocks_by_tier == (0, 0, 1)
    assert caller.world.free_frames()[2] == 31


def test_what_has_another_copy_is_found_there_and_written_again() -> None:
    caller = caller_of()
    caller.cache(TOKENS, session="s")
    caller.world.drain()
    lose(caller, 1)
    assert caller.lookup(KEYS).blocks_cached == 4
    assert on_disk(caller) == 1
    (write,) = caller.world.moving(Tier.CPU, Tier.DISK)
    assert [key.key for key in write.transfer.keys] == list(KEYS[1:])
    caller.world.drain()
    assert on_disk(caller) == 4


def test_a_copy_on_the_gpu_alone_is_copied_down_again() -> None:
    caller = caller_of(TOKENS, cpu_frames=4)
    caller.allocate(1, 17, KEYS)
    caller.world.drain()
    caller.step(free(1))
    blocks = caller.world.store.memory.blocks
    for number in (5, 6):
        caller.cache(text(number, 8), session="t")
        caller.world.drain()
    assert not any(blocks.valid[Tier.CPU][row] for row in stored_rows(caller.world.store.memory, STORED))
    lose(caller, 0)
    caller.world.drain()
    assert {key.key for key in caller.world.shadow.disk.find()} >= set(KEYS)


def test_who_waits_for_its_turn_to_read_it_goes_on_without() -> None:
    caller = caller_of(TOKENS, transfer_blocks_max=1, transfers_per_link_max=1)
    caller.allocate(1, 17, KEYS)
    lose(caller, 2)
    caller.world.drain()
    (notice,) = moves(caller.keep_alive().notices)
    assert (notice.state, notice.valid_tokens) == (SequenceState.RESIDENT, 8)


@pytest.mark.parametrize("good", [True, False])
def test_a_block_is_lost_while_it_is_read(good: bool) -> None:
    """The read may have come before or after; either way the block is on disk no more."""
    caller = caller_of(TOKENS)
    caller.allocate(1, 17, KEYS)
    (read,) = caller.world.moving(Tier.DISK, Tier.CPU)
    if good:
        caller.world.move(read)
    lose(caller, 2)
    caller.world.end(read)
    caller.world.drain()
    (notice,) = moves(caller.keep_alive().notices)
    assert (notice.state, notice.valid_tokens) == (SequenceState.RESIDENT, 8)
    assert caller.lookup(KEYS).blocks_cached == 2
    assert on_disk(caller) == 2
    caller.world.drain()
    assert caller.world.free_frames()[2] == 30


def test_a_block_is_lost_whose_child_is_being_written() -> None:
    caller = caller_of(transfer_blocks_max=1)
    caller.cache(TOKENS, session="s")
    while stored(caller) < 2 or not caller.world.moving(Tier.CPU, Tier.DISK):
        caller.world.end(caller.world.under_way[0])
    lose(caller, 1)
    caller.world.drain()
    found = caller.world.shadow.disk.find()
    assert [key.key for key in found] == list(KEYS[: len(found)])
    assert caller.world.free_frames()[2] == 32 - len(found)


def test_what_was_being_written_when_it_was_forgotten_is_not_found_again_by_a_later_commit() -> None:
    """It would be on disk then without what it hangs on."""
    caller = caller_of(transfer_blocks_max=1)
    longer = text(1, 20)
    caller.begin(1, TOKENS)
    caller.begin(2, PROMPT, session="s")
    caller.step(free(2))
    caller.step()
    while stored(caller) < 2 or not caller.world.moving(Tier.CPU, Tier.DISK):
        caller.world.end(caller.world.under_way[0])
    lose(caller, 1)
    assert caller.lookup(KEYS).blocks_cached == 2
    caller.allocate(1, 20)
    caller.step(commit(1, keys_of(longer)[4:], 4))
    caller.step()
    caller.world.drain()
    assert caller.lookup(keys_of(longer)).blocks_cached == 2
    assert [key.key for key in caller.world.shadow.disk.find()] == list(KEYS[:2])


def test_a_block_is_lost_that_is_being_written_again() -> None:
    """What the disk lost was an older one: the write that is under way counts."""
    caller = caller_of()
    caller.cache(TOKENS, session="s")
    caller.world.end(caller.world.moving(Tier.GPU, Tier.CPU)[0])
    (write,) = caller.world.moving(Tier.CPU, Tier.DISK)
    caller.world.lose(write.transfer.keys)
    caller.world.end(write)
    assert on_disk(caller) == 4
    assert caller.world.free_frames()[2] == 28
    assert caller.lookup(KEYS).blocks_cached == 4


def test_a_block_that_a_swapped_sequence_claims_is_lost() -> None:
    caller = caller_of(TOKENS)
    caller.allocate(1, 17, KEYS)
    caller.world.drain()
    caller.keep_alive()
    caller.write(caller.table(1), PROMPT, 16)
    caller.swap_out(1, 17)
    caller.step()
    caller.world.drain()
    for number in range(2, 8):
        caller.cache(text(number, 16))
        caller.world.drain()
    assert caller.state(1) is SequenceState.SWAPPED
    lose(caller, 1)
    caller.swap_in(1)
    caller.world.drain()
    assert caller.state(1) is SequenceState.RESIDENT
    assert caller.sequence(1).filled_tokens in (4, 17)
    caller.read(caller.table(1), PROMPT[: caller.sequence(1).filled_tokens])


def test_what_the_store_does_not_know_on_disk_is_no_loss() -> None:
    caller = caller_of()
    caller.cache(TOKENS)
    caller.world.drain()
    before = caller.world.store.usage()
    effects = caller.world.lose([*STORED, *stored_keys(text(2, 8))])
    assert not effects.deletes
    assert caller.world.store.usage() == before
