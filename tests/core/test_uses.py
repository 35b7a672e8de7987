"""What a policy that learns is told: each request, when it is over, with the blocks that can be found."""

import numpy as np
import pytest

from kvstore.core.engines import Used
from kvstore.core.memory import Memory
from kvstore.core.operations import Allocate, AllocateResult, EndSession
from kvstore.core.ports import Use
from kvstore.core.store import Store
from kvstore.core.types import DomainId, Retention, SequenceId, Tier
from kvstore.core.uses import key_hashes, own_chains
from kvstore.policy.eviction import Lru
from kvstore.policy.swap import LengthThreshold
from kvstore.sim.stores import EVICTIONS
from tests.core.caller import Caller
from tests.core.fuzz import Fuzz
from tests.core.ops import commit, free, swap_out
from tests.core.world import World, keys_of, make_store, text

TOKENS = text(1, 16)
DOMAIN = DomainId(1 << 32 | 1)


class Learner(Lru):
    learns = True

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self.gone: list[tuple[Tier, int]] = []
        self.over: list[list[int]] = []

    def use(self, use: Use) -> None:
        self.uses.append(use)

    def retire(self, rows: np.ndarray) -> None:
        self.over.append(rows.tolist())

    def evicted(self, tier: Tier, rows: np.ndarray) -> None:
        self.gone += [(tier, row) for row in rows.tolist()]


def learning(**sizes: int) -> tuple[Caller, Learner]:
    config, policy = make_store(**({"gpu_frames": 16} | sizes)).config, Learner()
    return Caller(World(Store(config, policy, LengthThreshold(8)))), policy


def test_a_request_is_told_when_it_is_over_with_what_it_found() -> None:
    caller, policy = learning()
    caller.begin(1, TOKENS)
    assert not policy.uses
    caller.step(free(1))
    caller.step()
    longer = TOKENS + text(2, 9)
    caller.begin(2, longer)
    caller.step(free(2))
    caller.step()
    first, second = policy.uses
    assert (first.found, first.prompt_tokens, first.answer_tokens) == (0, 16, 0)
    assert (second.found, second.prompt_tokens) == (4, 25)
    assert second.rows[:4].tolist() == first.rows.tolist()
    assert second.rows.size == 6
    assert first.hashes.tolist() == key_hashes(DOMAIN, keys_of(TOKENS)).tolist()
    assert second.hashes[:4].tolist() == first.hashes.tolist()


def test_an_answer_is_what_was_asked_for_later() -> None:
    caller, policy = learning()
    caller.begin(1, TOKENS)
    caller.allocate(1, 30)
    caller.step(free(1))
    caller.step()
    assert [(use.prompt_tokens, use.answer_tokens) for use in policy.uses] == [(16, 14)]


def test_a_turn_is_told_where_the_engine_numbers_those_of_a_session() -> None:
    caller, policy = learning()
    for sequence, (session, turn) in enumerate((("chat", 0), ("chat", 7), ("", 7)), start=1):
        operation = Allocate(
            sequence=SequenceId(sequence),
            token_count=16,
            block_keys=keys_of(TOKENS),
            session=session,
            turn=turn,
        )
        result = caller.one(AllocateResult, operation)
        caller.write(result.block_table, TOKENS, result.cached_tokens)
        caller.step(commit(sequence, keys_of(TOKENS)))
        caller.step(free(sequence))
        caller.step()
    assert [use.session_turn for use in policy.uses] == [0, 7, 0]


def test_of_the_same_text_another_tenant_uses_other_blocks() -> None:
    caller, policy = learning()
    caller.cache(TOKENS, tenant="a")
    caller.cache(TOKENS, tenant="b")
    one, two = policy.uses
    assert set(one.hashes.tolist()).isdisjoint(two.hashes.tolist())


def test_the_blocks_are_those_that_can_be_found() -> None:
    """Another published them first: whoever computes them again in the same moment has used these."""
    caller, policy = learning(gpu_frames=32)
    caller.allocate(1, 17, keys_of(TOKENS))
    caller.begin(2, TOKENS + text(3, 4))
    table = caller.table(1)
    caller.write(table, TOKENS)
    caller.step(commit(1, keys_of(TOKENS)))
    caller.step(free(2), free(1))
    caller.step()
    assert [use.rows[:4].tolist() for use in policy.uses] == [policy.uses[0].rows[:4].tolist()] * 2


def test_what_is_swapped_when_it_ends_was_used_too() -> None:
    caller, policy = learning(cpu_frames=16)
    caller.begin(1, TOKENS)
    caller.step(swap_out(1, 16))
    caller.step()
    caller.world.drain()
    caller.step(free(1))
    caller.step()
    assert [use.rows.size for use in policy.uses] == [4]


def test_a_request_without_blocks_of_its_own_or_whose_engine_is_gone_is_no_use() -> None:
    caller, policy = learning()
    caller.allocate(1, 3)
    caller.step(free(1))
    caller.begin(2, TOKENS)
    caller.detach()
    caller.close_tethers()
    assert not policy.uses


def test_what_makes_room_is_told_as_evicted_and_what_is_thrown_away_is_not() -> None:
    caller, policy = learning()
    caller.cache(TOKENS)
    caller.begin(2, text(2, 12))
    caller.step(free(2, retention=Retention.DISCARD))
    caller.step()
    assert caller.allocate(3, 64).outcome
    assert {tier for tier, _ in policy.gone} == {Tier.GPU}
    assert sorted(row for _, row in policy.gone)[:4] == sorted(policy.uses[0].rows.tolist())


def test_that_a_session_is_over_is_told_with_what_is_its_own_tails_first() -> None:
    """And not with what others have used as well, which stays cached."""
    caller, policy = learning()
    caller.cache(TOKENS, session="other")
    longer = TOKENS + text(2, 8)
    caller.cache(longer, session="chat")
    chain = policy.uses[-1].rows.tolist()
    assert len(chain) == 6
    caller.step(EndSession(session="chat"))
    caller.step()
    assert policy.over == [chain[:3:-1]]
    assert caller.lookup(keys_of(longer)).blocks_cached == 4
    # Of a session that has nothing left nobody hears again.
    caller.step(EndSession(session="chat"))
    caller.step()
    assert policy.over == [chain[:3:-1]]


def test_what_a_session_has_left_beside_its_last_turn_is_over_with_it() -> None:
    caller, policy = learning()
    caller.cache(TOKENS + text(2, 8), session="chat")
    caller.cache(TOKENS + text(3, 8), session="chat")
    both = {row for use in policy.uses for row in use.rows.tolist()}
    assert len(both) == 8
    caller.step(EndSession(session="chat"))
    caller.step()
    (over,) = policy.over
    assert set(over) == both
    assert len(over) == 8


def test_what_is_thrown_away_is_told_to_be_over() -> None:
    caller, policy = learning()
    caller.cache(TOKENS)
    caller.begin(2, TOKENS + text(2, 8))
    caller.step(free(2, retention=Retention.DISCARD))
    caller.step()
    assert policy.over == [policy.uses[-1].rows[4:].tolist()[::-1]]


def test_a_policy_that_does_not_learn_is_told_nothing() -> None:
    caller, policy = learning()
    policy.learns = False
    caller.cache(TOKENS, session="chat")
    caller.step(EndSession(session="chat"))
    caller.step()
    assert not policy.uses
    assert not policy.over


def test_a_policy_is_told_once_of_a_block_that_two_requests_of_a_step_share() -> None:
    told: list[list[int]] = []

    class Listener(Lru):
        def forget(self, tier: Tier, rows: np.ndarray) -> None:
            told.append(rows.tolist())
            super().forget(tier, rows)

    config = make_store(gpu_frames=16).config
    caller = Caller(World(Store(config, Listener(), LengthThreshold(8))))
    caller.begin(1, TOKENS)
    caller.step(free(1))
    caller.step()
    told.clear()
    both = [
        Allocate(sequence=SequenceId(each), token_count=len(TOKENS), block_keys=keys_of(TOKENS)[:3])
        for each in (2, 3)
    ]
    caller.step(*both)
    assert [len(rows) for rows in told] == [3]


def test_what_is_told_is_what_the_keys_lead_to_wherever_the_sequence_had_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own rows are told where they are these, and looked for where they are not."""
    told = {True: 0, False: 0}

    def look(memory: Memory, uses: list[Used]) -> list[np.ndarray]:
        chains = own_chains(memory, uses)
        for used, own in zip(uses, chains, strict=True):
            found = memory.prefix.find_prefix(used.domain, used.keys, {}).tolist()
            told[bool(own.size)] += bool(found)
            assert not own.size or own.tolist() == found
        return chains

    monkeypatch.setattr("kvstore.core.uses.own_chains", look)
    Fuzz(0, eviction=EVICTIONS.index("worth"), cpu_frames=12, disk_frames=20, forget_share=0.05).note()
    assert told[True]
    assert told[False]
