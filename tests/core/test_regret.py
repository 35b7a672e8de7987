"""Regret: what a tier twice as large would have had, beside a plain simulation of one that is."""

import random
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import pytest

from kvstore.core.blocks import Blocks
from kvstore.core.regret import GHOSTS_MAX, Regret
from kvstore.core.types import BlockKey, NamespaceId, Outcome, Retention, TenantId, Tier, domain_id
from tests.core.caller import Caller
from tests.core.ops import commit, free
from tests.core.world import World, keys_of, make_store, text

BLOCK_TOKENS = 4


class PlainLru:
    """A tier of so many frames, one request after the other: hits are leading blocks."""

    def __init__(self, frames: int) -> None:
        self.frames = frames
        # The least recently used first.
        self.blocks: OrderedDict[BlockKey, None] = OrderedDict()

    def ask(self, keys: Sequence[BlockKey]) -> int:
        """A prompt of these blocks and one token more: the blocks that were found. Then it is done."""
        found = 0
        while found < len(keys) and keys[found] in self.blocks:
            found += 1
        held = keys[:found]
        others = [key for key in self.blocks if key not in held]
        lacking = len(self.blocks) + (len(keys) + 1 - found) - self.frames
        for key in others[: max(0, lacking)]:
            del self.blocks[key]
        for key in reversed(keys):
            self.blocks[key] = None
            self.blocks.move_to_end(key)
        return found


def prompts(seed: int, count: int, longest: int) -> list[tuple[int, ...]]:
    """Some begin like others, some are asked for again, many are new."""
    rng = random.Random(seed)
    made: list[tuple[int, ...]] = []
    for number in range(count):
        old = rng.choice(made) if made and rng.random() < 0.75 else ()
        kept = old[: BLOCK_TOKENS * rng.randint(0, len(old) // BLOCK_TOKENS)] if rng.random() < 0.5 else old
        room = longest - len(kept) // BLOCK_TOKENS
        more = rng.randint(0 if kept else 1, max(0, min(3, room)))
        made.append(kept + text(seed * 1000 + number, BLOCK_TOKENS * more))
    return made


@pytest.mark.parametrize("seed", range(12))
def test_hits_and_ghost_hits_are_those_of_a_tier_of_twice_the_size(seed: int) -> None:
    """Exactly, request for request."""
    rng = random.Random(seed)
    frames = rng.choice([8, 12, 16, 24])
    caller = Caller(World(make_store(gpu_frames=frames)))
    single, double = PlainLru(frames), PlainLru(2 * frames)
    lost, lost_told = [], []
    for number, prompt in enumerate(prompts(seed, 150, frames - 2), start=1):
        before = ghost_hits(caller)
        keys = keys_of(prompt)
        result = caller.allocate(number, len(prompt) + 1, keys)
        assert result.outcome is Outcome.OK
        found = single.ask(keys)
        assert result.cached_tokens == found * BLOCK_TOKENS
        caller.write(result.block_table, prompt, result.cached_tokens)
        caller.step(commit(number, keys))
        caller.step(free(number))
        caller.step()
        lost.append(double.ask(keys) - found)
        lost_told.append(ghost_hits(caller) - before)
    assert lost_told == lost
    assert sum(lost) > 0


def ghost_hits(caller: Caller, tier: Tier = Tier.GPU) -> int:
    return caller.world.store.usage().tiers[tier].blocks_ghost_hit


def test_what_is_found_in_another_tier_is_not_lost() -> None:
    caller = Caller(World(make_store(gpu_frames=8, cpu_frames=16)))
    caller.cache(text(1, 16))
    caller.world.drain()
    caller.cache(text(2, 32))
    caller.world.drain()
    assert caller.allocate(9, 17, keys_of(text(1, 16))).tier_tokens == (0, 16, 0)
    assert [ghost_hits(caller, tier) for tier in (Tier.GPU, Tier.CPU)] == [0, 0]


@pytest.mark.parametrize(("number", "told"), [(6, [0, 0]), (5, [4, 4]), (4, [0, 4]), (2, [0, 0])])
def test_each_tier_has_ghosts_of_its_own(number: int, told: list[int]) -> None:
    """Of eight texts the GPU has the last two, the CPU tier the one before; and ghosts as many as frames."""
    caller = Caller(World(make_store(gpu_frames=8, cpu_frames=12)))
    for each in range(1, 9):
        caller.cache(text(each, 16))
        caller.world.drain()
    assert caller.lookup(keys_of(text(6, 16))).blocks_by_tier == (0, 4, 0)
    caller.allocate(99, 17, keys_of(text(number, 16)))
    assert [ghost_hits(caller, tier) for tier in (Tier.GPU, Tier.CPU)] == told


def test_who_waits_is_counted_once_and_as_it_is_admitted() -> None:
    caller = Caller(World(make_store(gpu_frames=12)))
    caller.cache(text(1, 16))
    caller.cache(text(2, 48))
    caller.allocate(3, 32)
    for _ in range(3):
        assert caller.allocate(9, 17, keys_of(text(1, 16))).outcome is Outcome.LATER
        assert ghost_hits(caller) == 0
    caller.step(free(3))
    caller.step()
    assert caller.allocate(9, 17, keys_of(text(1, 16))).outcome is Outcome.OK
    assert ghost_hits(caller) == 4


def test_a_ghost_is_its_tenants_alone() -> None:
    caller = Caller(World(make_store(gpu_frames=8)))
    caller.cache(text(1, 16), tenant="a")
    caller.cache(text(2, 32), tenant="b")
    caller.allocate(9, 16, keys_of(text(1, 16)), tenant="b")
    assert ghost_hits(caller) == 0
    caller.step(free(9, retention=Retention.DISCARD))
    caller.step()
    caller.allocate(10, 17, keys_of(text(1, 16)), tenant="a")
    assert ghost_hits(caller) == 4


def test_what_was_discarded_was_not_lost_for_want_of_room() -> None:
    caller = Caller(World(make_store(gpu_frames=8)))
    caller.begin(1, text(1, 16))
    caller.step(free(1, retention=Retention.DISCARD))
    caller.step()
    assert caller.lookup(keys_of(text(1, 16))).blocks_by_tier == (0, 0, 0)
    caller.allocate(2, 17, keys_of(text(1, 16)))
    assert ghost_hits(caller) == 0


def test_what_comes_back_to_its_tier_is_no_ghost_of_it() -> None:
    """From the disk to the CPU tier: its ghost would take the place of one that is lost."""
    caller = Caller(World(make_store(gpu_frames=8, cpu_frames=8, disk_frames=64)))
    for number in range(1, 4):
        caller.cache(text(number, 16), session=f"{number}")
        caller.world.drain()
    regret = caller.world.store.memory.regret
    before = regret.count_of(Tier.CPU)
    assert caller.allocate(9, 17, keys_of(text(1, 16))).tier_tokens == (0, 0, 16)
    caller.world.drain()
    assert caller.world.store.memory.blocks_evicted[Tier.CPU] == 8
    assert before == 4
    assert regret.count_of(Tier.CPU) == 4


def test_of_a_large_tier_a_sample_tells() -> None:
    """It is bounded, and its estimate of half of what was asked for is near that."""
    frames = 4 * GHOSTS_MAX + 1
    blocks = Blocks(1024)
    regret = Regret(blocks, (frames,))
    domain = domain_id(NamespaceId(1), TenantId(1))
    blocks.domain[:] = domain
    rows = np.arange(1024)
    rng = random.Random(7)
    chains = [[BlockKey(rng.randbytes(32)) for _ in range(1024)] for _ in range(300)]
    for chain in chains:
        blocks.key[:] = chain
        regret.note(Tier.GPU, rows[::-1])
        regret.settle()
        regret.check_bounds()
    # The last ones fit; the first ones are forgotten, tails first.
    for chain in chains:
        regret.count(domain, chain, 0, 1024)
    assert regret.blocks_hit[0] == pytest.approx(frames, rel=0.05)
