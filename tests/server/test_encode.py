"""Answers become messages, and the core's words the contract's."""

import time

import pytest

from kvstore.core.answers import FrameCopy, KeepAliveAnswer, LookupAnswer, StepAnswer
from kvstore.core.notices import PressureChanged, SequenceMoved
from kvstore.core.operations import (
    AllocateResult,
    CommitResult,
    Decision,
    EndSessionResult,
    ForkResult,
    FreeResult,
    Result,
    SwapResult,
    UpdateActivityResult,
)
from kvstore.core.types import (
    EngineState,
    Frame,
    Outcome,
    Pressure,
    Revision,
    SequenceId,
    SequenceState,
    StepNumber,
    Tier,
)
from kvstore.core.usage import EngineUsage, TierUsage, Usage
from kvstore.observe.counting import Counts
from kvstore.server import clock
from kvstore.server.encode import encode_keep_alive, encode_lookup, encode_step
from kvstore.server.encode_usage import Facts, encode_usage
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.messages import ENGINE, NAME


def test_a_step_answer_of_every_result_is_encoded() -> None:
    results: tuple[Result, ...] = (
        AllocateResult(
            outcome=Outcome.OK,
            state=SequenceState.SWAPPING_IN,
            cached_tokens=48,
            block_table=(Frame(5), Frame(0)),
            first_block=2,
            frames_short=1,
            tier_tokens=(16, 32, 0),
        ),
        ForkResult(outcome=Outcome.LATER),
        SwapResult(
            outcome=Outcome.OK,
            state=SequenceState.SWAPPING_OUT,
            block_table=(Frame(1),),
            valid_tokens=3,
            frames_short=2,
            decision=Decision(time=1.0, kind="swap_out", chosen="keep", inputs=(("tokens", 9.0),)),
        ),
        FreeResult(),
        CommitResult(),
        UpdateActivityResult(outcome=Outcome.NEVER, state=SequenceState.DROPPED),
        EndSessionResult(),
    )
    moved = SequenceMoved(
        engine=ENGINE,
        revision=Revision(8),
        sequence=SequenceId(1),
        state=SequenceState.RESIDENT,
        block_table=(Frame(4),),
        valid_tokens=16,
    )
    pressure = PressureChanged(revision=Revision(9), tier=Tier.GPU, pressure=Pressure.FULL)
    answer = StepAnswer(
        step=StepNumber(7),
        results=results,
        copies=(FrameCopy(source=Frame(1), target=Frame(2)),),
        revision=Revision(9),
        notices=(moved, pressure),
        lease_expire_time=clock.now(),
    )
    message = encode_step(ENGINE, answer)
    allocate = message.results[0].allocate
    assert (allocate.outcome, allocate.state) == (pb.OUTCOME_OK, pb.Sequence.SWAPPING_IN)
    assert (list(allocate.block_table), allocate.first_block, allocate.frames_short) == ([5, 0], 2, 1)
    tokens = (allocate.cached_tokens, allocate.gpu_tokens, allocate.cpu_tokens, allocate.disk_tokens)
    assert tokens == (48, 16, 32, 0)
    swap = message.results[2].swap
    assert (swap.valid_tokens, swap.frames_short, swap.decision.chosen) == (3, 2, "keep")
    assert swap.decision.inputs == {"tokens": 9.0}
    kinds = [result.WhichOneof("kind") for result in message.results]
    assert kinds == ["allocate", "fork", "swap", "free", "commit", "update_activity", "end_session"]
    assert message.results[5].update_activity.outcome == pb.OUTCOME_NEVER
    assert [(copy.source, copy.target) for copy in message.copies] == [(1, 2)]
    assert [event.WhichOneof("kind") for event in message.events.events] == [
        "sequence_moved",
        "pressure_changed",
    ]
    assert message.events.events[0].sequence_moved.engine == NAME
    assert message.events.events[1].pressure_changed.tier == pb.TIER_GPU
    assert message.events.revision == 9


def test_core_enums_and_the_contract_agree() -> None:
    """The core says that its numbers are the contract's; the tables must say the same."""
    for state in SequenceState:
        assert pb.Sequence.State.Name(state.value) == state.name  # type: ignore[arg-type]
    for outcome in Outcome:
        assert pb.Outcome.Name(outcome.value) == f"OUTCOME_{outcome.name}"  # type: ignore[arg-type]


def test_times_on_the_wall_follow_the_monotonic_clock() -> None:
    lease = clock.timestamp(clock.now() + 10).ToNanoseconds() - clock.timestamp(clock.now()).ToNanoseconds()
    assert abs(lease - 10e9) < 1e9


def test_a_moment_is_the_same_timestamp_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock.timestamp(123.456)
    wall = time.time_ns()
    monkeypatch.setattr("time.time_ns", lambda: wall + 3_600_000_000_000)
    assert clock.timestamp(123.456).SerializeToString() == before.SerializeToString()
    # What engines compare with the wall clock is by that clock as it is.
    later = clock.timestamp_today(123.456).ToNanoseconds() - before.ToNanoseconds()
    assert abs(later - 3600e9) < 10e9


def test_keep_alive_and_lookup_answers() -> None:
    answer = KeepAliveAnswer(
        state=EngineState.EXPIRED, lease_expire_time=clock.now(), revision=Revision(3), notices=()
    )
    message = encode_keep_alive(ENGINE, answer, 2**64 - 1)
    assert (message.engine.name, message.engine.state) == (NAME, pb.Engine.EXPIRED)
    assert (message.engine.store_epoch, message.events.revision) == (2**64 - 1, 3)
    lookup = encode_lookup(LookupAnswer(blocks_cached=3, blocks_by_tier=(1, 0, 2)))
    assert (lookup.blocks_cached, dict(lookup.blocks_by_tier)) == (3, {"gpu": 1, "disk": 2})


def test_usage_is_encoded() -> None:
    tier = TierUsage(
        tier=Tier.DISK,
        frames_total=1,
        frames_free=2,
        frames_cached=3,
        frames_pinned=4,
        frames_quarantined=5,
        pressure=Pressure.HIGH,
        blocks_moved_in=6,
        blocks_failed=7,
        blocks_evicted=8,
    )
    engine = EngineUsage(
        engine=ENGINE,
        state=EngineState.EXPIRED,
        lease_expire_time=clock.now(),
        build="b",
        sequences=1,
        frames_quarantined=2,
        pids=(3, 4),
    )
    usage = Usage(revision=Revision(1), tiers=(tier,), engines=(engine,))
    message = encode_usage(usage, Counts(), Facts(store_epoch=5, build="b", start_wall=1.5))
    assert (message.revision, message.store_epoch) == (1, 5)
    [told] = message.tiers
    assert (told.tier, told.pressure) == (pb.TIER_DISK, pb.PRESSURE_HIGH)
    counts = [told.frames_total, told.frames_free, told.frames_cached, told.frames_pinned]
    moves = [told.frames_quarantined, told.blocks_moved_in, told.blocks_failed, told.blocks_evicted]
    assert counts + moves == [1, 2, 3, 4, 5, 6, 7, 8]
    assert list(message.engines[0].peer_pids) == [3, 4]
