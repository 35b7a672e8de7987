"""A journal read as a trace: what an engine asked for is what the planner plays."""

from contextlib import ExitStack

import pytest

from kvstore.core.calls import Attach, Detach, SetCosts, Step
from kvstore.core.errors import FieldInvalid, TraceInvalid
from kvstore.core.operations import Allocate, Commit, Free, Grow
from kvstore.core.types import BlockKey, EngineId, NamespaceId, SequenceId, StepNumber, WriterId
from kvstore.planner.machine import Machine
from kvstore.planner.plan import Rules, play
from kvstore.planner.recorded import open_journal
from kvstore.planner.workload import load_workload
from kvstore.sim.stores import make_store
from kvstore.sim.texts import BLOCK_TOKENS
from tests.observe.helpers import journaled
from tests.planner.made import Made, machine, request, sizes

ENGINE = EngineId("engine")


def keys(*numbers: int) -> tuple[BlockKey, ...]:
    return tuple(BlockKey(number.to_bytes(32, "big")) for number in numbers)


class Caller:
    """An engine that sends steps to a store."""

    def __init__(self, store, namespace: int = 1, engine: str = ENGINE) -> None:
        self._store, self._engine, self._step, self.time = store, EngineId(engine), 0, 100.0
        store.handle(
            Attach(
                time=self.time,
                engine=self._engine,
                request_id=engine,
                namespace=NamespaceId(namespace),
                writer=WriterId(1),
                build="test",
                lease_seconds=10.0,
            )
        )

    def step(self, *operations) -> None:
        self.time += 1.0
        self._step += 1
        event = Step(
            time=self.time,
            engine=self._engine,
            step=StepNumber(self._step),
            completed_step=StepNumber(self._step - 1),
            operations=operations,
        )
        try:
            self._store.handle(event)
        except FieldInvalid:
            self._step -= 1
            raise

    def detach(self) -> None:
        self._store.handle(Detach(time=self.time, engine=self._engine))


def allocate(sequence: int, tokens: int, *names: int, session: str = "") -> Allocate:
    return Allocate(
        sequence=SequenceId(sequence), token_count=tokens, block_keys=keys(*names), session=session
    )


def commit(sequence: int, first: int, *names: int) -> Commit:
    return Commit(sequence=SequenceId(sequence), first_block=first, block_keys=keys(*names))


def free(*sequences: int) -> Free:
    return Free(sequences=tuple(SequenceId(each) for each in sequences))


def grow(sequence: int, tokens: int) -> Grow:
    return Grow(sequences=(SequenceId(sequence),), token_counts=(tokens,), known_blocks=(0,))


def test_two_turns_of_a_conversation(tmp_path):
    assert BLOCK_TOKENS == 4
    store = make_store(gpu_frames=32)
    with journaled(store, tmp_path):
        caller = Caller(store)
        caller.step(allocate(1, 9, 1, 2, session="chat"))
        caller.step(commit(1, 0, 1, 2))
        # The answer fills the third block and one more, and begins a fifth.
        caller.step(grow(1, 17))
        caller.step(commit(1, 2, 3, 4), free(1))
        caller.step(allocate(2, 18, 1, 2, 3, 4, session="chat"))
        caller.step(free(2))
    trace = open_journal(tmp_path)
    assert trace.block_tokens == 4
    first, second = trace.requests()
    assert (first.time, first.input_tokens, first.output_tokens) == (101, 9, 8)
    assert (len(first.block_ids), len(first.answer_ids)) == (3, 2)
    assert (second.time, second.input_tokens, second.output_tokens) == (105, 18, 0)
    assert first.session == second.session != ""
    # Played, the second finds all four.
    outcome = play(load_workload(trace), machine(sizes(gpu=32)), Rules(closed=True))
    assert outcome.blocks_found == (4, 0, 0)


def test_what_is_refused_or_freed_before_it_was_made_is_no_request(tmp_path):
    store = make_store(gpu_frames=32)
    with journaled(store, tmp_path):
        caller = Caller(store)
        with pytest.raises(FieldInvalid):
            caller.step(allocate(1, 0))
        caller.step(free(7))
        caller.step(allocate(2, 5))
        caller.detach()
    (only,) = open_journal(tmp_path).requests()
    # Without a key a block is nobody's: the two have ids of their own.
    assert (only.input_tokens, len(set(only.block_ids)), only.session) == (5, 2, "")


def test_the_same_keys_of_two_models_are_two_blocks(tmp_path):
    store = make_store(gpu_frames=32)
    with journaled(store, tmp_path):
        callers = [Caller(store, 1, "one"), Caller(store, 2, "two")]
        for caller in callers:
            caller.step(allocate(1, 5, 1))
            caller.step(free(1))
    first, second = open_journal(tmp_path).requests()
    assert first.block_ids[0] != second.block_ids[0]


@pytest.mark.parametrize(("block_bytes", "each"), [(4_096, 1_024), (4_097, 1_025)])
def test_what_a_block_took_is_in_the_journal_once_the_service_was_told_what_moving_it_costs(
    tmp_path, block_bytes, each
):
    store = make_store(gpu_frames=32, cpu_frames=8)
    with journaled(store, tmp_path):
        caller = Caller(store)
        store.handle(SetCosts(time=caller.time, block_bytes=block_bytes, links=()))
        caller.step(allocate(1, 5))
    trace = open_journal(tmp_path)
    assert len(list(trace.requests())) == 1
    assert trace.kv_bytes_per_token == each


def test_a_journal_may_not_say_what_a_block_took(tmp_path):
    store = make_store(gpu_frames=32)
    with journaled(store, tmp_path):
        Caller(store).step(allocate(1, 5))
    trace = open_journal(tmp_path)
    assert len(list(trace.requests())) == 1
    assert trace.kv_bytes_per_token == 0


def test_a_folder_without_a_journal(tmp_path):
    with pytest.raises(TraceInvalid, match="no run is recorded there"):
        open_journal(tmp_path)


def test_a_play_that_was_journaled_finds_the_same_when_its_journal_is_played(tmp_path, monkeypatch):
    made = Made(
        *(request(50 * turn, [1, *range(10, 11 + turn)], output=3, session="a") for turn in range(4)),
        *(request(50 * turn + 25, [1, *range(20, 21 + turn)], output=3, session="b") for turn in range(4)),
    )
    begin = Machine.__init__

    with ExitStack() as recording, monkeypatch.context() as patched:

        def begin_recorded(machine, *arguments) -> None:
            begin(machine, *arguments)
            recording.enter_context(journaled(machine.store, tmp_path))

        patched.setattr(Machine, "__init__", begin_recorded)
        first = play(load_workload(made), machine(sizes(gpu=12)), Rules(closed=False))
    again = play(load_workload(open_journal(tmp_path)), machine(sizes(gpu=12)), Rules(closed=False))
    assert first.requests == again.requests == 8
    assert first.blocks_found == again.blocks_found != (0, 0, 0)
