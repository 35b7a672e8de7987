"""What nobody wants any more goes when nothing holds it, and stays where somebody wants it by then."""

import numpy as np
import pytest

from kvstore.core.types import Retention, Tier
from tests.core.caller import Caller
from tests.core.ops import commit, end_session, free
from tests.core.test_passage import KEYS as WEDGED_KEYS
from tests.core.test_passage import wedged
from tests.core.three_tiers import KEYS, TOKENS, caller_of
from tests.core.world import keys_of, text


def is_gone(caller: Caller) -> bool:
    return caller.lookup(KEYS).blocks_cached == 0 and not caller.world.shadow.disk


def test_what_a_swapped_sequence_had_goes_with_it_when_its_session_is_over() -> None:
    caller = caller_of()
    caller.begin(1, TOKENS, session="s")
    caller.swap_out(1, 16)
    caller.step()
    caller.world.drain()
    caller.step(end_session("s"))
    caller.step()
    assert caller.lookup(KEYS).blocks_by_tier == (0, 4, 0)
    caller.step(free(1, retention=Retention.CACHE))
    assert is_gone(caller)
    assert caller.world.free_frames() == (16, 16, 32)


@pytest.mark.parametrize("retention", [Retention.CACHE, Retention.DISCARD])
def test_what_a_second_turn_uses_goes_with_it_when_its_session_is_over(retention: Retention) -> None:
    caller = caller_of()
    caller.cache(TOKENS, session="s")
    caller.world.drain()
    caller.allocate(2, 20, KEYS, session="s")
    caller.step(end_session("s"))
    caller.step()
    assert caller.lookup(KEYS).blocks_cached == 4
    caller.step(free(2, retention=retention))
    caller.step()
    assert is_gone(caller)


@pytest.mark.parametrize("retention", [Retention.DEFAULT, Retention.SESSION])
def test_a_turn_that_is_kept_after_its_session_was_over_is_written(retention: Retention) -> None:
    caller = caller_of()
    caller.begin(1, TOKENS, session="s")
    caller.step(end_session("s"))
    caller.step()
    caller.step(free(1, retention=retention))
    caller.step()
    caller.world.drain()
    assert caller.lookup(KEYS).blocks_by_tier[0] == 4
    assert len(caller.world.shadow.disk) == 4


def test_one_that_hangs_on_it_and_is_evicted_held_it_no_longer() -> None:
    """The other turn has computed the same, and has published what it has more."""
    caller = caller_of(cpu_frames=0, disk_frames=0, gpu_frames=16)
    longer = (*TOKENS, *text(2, 4))
    caller.allocate(2, 20)
    caller.cache(TOKENS, session="s")
    caller.write(caller.table(2), longer)
    caller.step(commit(2, keys_of(longer)))
    caller.step(free(2))
    caller.step(end_session("s"))
    caller.step()
    assert caller.lookup(KEYS).blocks_cached == 4
    caller.allocate(3, 48)
    assert caller.lookup(KEYS).blocks_cached == 0
    assert caller.world.free_frames()[0] == 4


def test_a_chain_goes_whole_whatever_tiers_its_blocks_are_in() -> None:
    """Its first blocks are on the GPU alone, others in the CPU tier alone, and the last on the GPU again."""
    caller = wedged()
    caller.step(free(2))
    caller.step()
    memory = caller.world.store.memory
    rows = np.flatnonzero(memory.blocks.indexed & ~memory.blocks.valid[Tier.DISK])
    assert rows.size == 5
    memory.discard(rows)
    assert caller.lookup(WEDGED_KEYS).blocks_cached == 0
