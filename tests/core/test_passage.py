"""What is read from disk passes through the CPU tier, whatever that is full of: nobody waits for ever."""

from kvstore.core.notices import SequenceMoved
from kvstore.core.types import Outcome, Retention, SequenceState, Tier
from tests.core.caller import Caller, moves
from tests.core.ops import commit, free
from tests.core.world import World, keys_of, make_store, stored_keys, text

CHAIN = text(1, 20)
KEYS = keys_of(CHAIN)
OTHER = text(2, 5)


def wedged() -> Caller:
    """Of a chain of five blocks two are in the CPU tier alone, which has no more frames. They are to be
    written behind the first two, which are on the GPU only and wait for a CPU frame; the last, which hangs
    on them, is in use by sequence 2. The first block of OTHER lies on disk.
    """
    world = World(make_store(gpu_frames=12, cpu_frames=2, disk_frames=16))
    world.find(CHAIN[:16], OTHER[:4])
    caller = Caller(world)
    compute_twice(caller)
    lose(caller, 0)
    assert caller.allocate(3, 20).outcome is Outcome.OK
    caller.step(free(3, retention=Retention.DISCARD))
    caller.step()
    world.drain()
    found = caller.lookup(KEYS)
    assert (found.blocks_cached, found.blocks_by_tier) == (5, (3, 2, 0))
    assert world.free_frames()[1] == 0
    return caller


def lose(caller: Caller, place: int) -> None:
    """The disk finds this block of the chain bad, and drops it."""
    lost = stored_keys(CHAIN)[place]
    caller.world.shadow.disk.drop(lost)
    caller.world.lose([lost])


def compute_twice(caller: Caller) -> None:
    """The first four blocks of the chain are read through the CPU tier and become idle; sequence 2 has
    computed the same, and has published the last block."""
    caller.allocate(1, 17, KEYS[:4])
    caller.world.drain()
    caller.write(caller.allocate(2, 20).block_table, CHAIN)
    caller.step(commit(2, KEYS), free(1))
    caller.step()


def read_other(caller: Caller) -> SequenceMoved:
    """What becomes of a sequence that needs the block of OTHER."""
    answer = caller.allocate(4, 5, keys_of(OTHER))
    assert answer.outcome is Outcome.OK
    caller.world.drain()
    assert caller.state(4) is SequenceState.RESIDENT
    *_, notice = moves(caller.keep_alive().notices)
    return notice


def test_what_is_stuck_in_the_cpu_tier_makes_way_for_a_read() -> None:
    caller = wedged()
    caller.step(free(2))
    caller.step()
    notice = read_other(caller)
    assert notice.valid_tokens == 4
    caller.read(notice.block_table, OTHER[:4])
    # As much as there is to read, and what hangs on it.
    assert caller.lookup(KEYS).blocks_cached == 3
    used = caller.world.store.usage().tiers[Tier.CPU]
    assert used.frames_free == 0


def test_a_read_that_nothing_makes_way_for_is_refused() -> None:
    """Whoever uses the last block of the chain may wait for frames that the reader has."""
    caller = wedged()
    assert read_other(caller).valid_tokens == 0
    assert caller.lookup(KEYS).blocks_cached == 5
    # It is no worse for that: when the chain is idle, it is read.
    caller.step(free(2), free(4))
    caller.step()
    assert read_other(caller).valid_tokens == 4


def test_writes_that_make_room_for_a_read_make_way_for_nobody() -> None:
    """The chain's third and fourth block are to be written again, while somebody waits for GPU frames."""
    world = World(make_store(gpu_frames=12, cpu_frames=2, disk_frames=16))
    world.find(CHAIN[:16], OTHER[:4])
    caller = Caller(world)
    caller.allocate(4, 5, keys_of(OTHER))
    world.drain()
    caller.swap_out(4, 4)
    compute_twice(caller)
    assert caller.allocate(3, 20).outcome is Outcome.OK
    assert caller.allocate(5, 40).outcome is Outcome.LATER
    lose(caller, 2)
    assert not world.under_way
    assert caller.swap_in(4).state is SequenceState.SWAPPING_IN
    assert world.moving(Tier.CPU, Tier.DISK)
    assert not world.moving(Tier.DISK, Tier.CPU)
    world.drain()
    *_, notice = moves(caller.keep_alive().notices)
    assert notice.valid_tokens == 4
