"""The scheduler alone: operations out, answers in, as the contract allows them. No service, no model."""

from collections.abc import Callable, Iterable

import pytest

from engine.requests import CHUNK_TOKENS, Cached, Request, Stream, StreamState
from engine.sampling import Choice
from engine.scheduler import Scheduler
from kvstore.client import BlockTables, block_keys
from kvstore.v1 import kvstore_pb2 as pb

BLOCK_TOKENS = 16
Answer = Callable[[pb.Operation], pb.Result]


class Talk:
    """A scheduler and the tables that the answers go into."""

    def __init__(self, running_max: int = 16) -> None:
        self.scheduler = Scheduler(BLOCK_TOKENS, running_max=running_max)
        self.tables = BlockTables(BLOCK_TOKENS)
        self.changed: list[Stream] = []

    def submit(self, tokens: int, *, first: int = 0, answer: int = 8, priority: int = 0) -> Stream:
        prompt = tuple(range(first, first + tokens))
        request = Request(
            id=f"r{first}", prompt=prompt, max_new_tokens=answer, session="s", turn=1, priority=priority
        )
        return self.scheduler.submit(request)

    def step(self, answer: Answer, events: Iterable[pb.Event] = ()) -> list[pb.Operation]:
        operations = self.scheduler.operations(self.tables)
        response = pb.StepResponse(results=[answer(each) for each in operations])
        response.events.events.extend(events)
        self.tables.apply(operations, response)
        self.changed = self.scheduler.take(operations, response)
        return operations

    def run(self, token: int = 7) -> tuple[list[Stream], int]:
        """Computes what there is to compute; the model always says `token`."""
        work = self.scheduler.next_work(self.tables)
        if work is None:
            return [], 0
        for stream in work.streams:
            stream.computed += work.token_count
            if not stream.tokens_pending:
                stream.add(Choice(token, 1.0))
                if stream.is_done:
                    self.scheduler.end(stream)
        return work.streams, work.token_count

    def run_to_decode(self, answer: Answer, streams: int) -> None:
        """Until so many streams have their first token."""
        while sum(bool(each.margins) for each in self.scheduler._streams) < streams:
            self.step(answer)
            self.run()


def granted(operation: pb.Operation, cached: int = 0) -> pb.Result:
    """A store with endless room, which caches `cached` tokens of every new sequence."""
    match operation.WhichOneof("kind"):
        case "allocate":
            known, blocks = operation.allocate.known_blocks, operation.allocate.token_count // BLOCK_TOKENS
            response = pb.AllocateResponse(
                outcome=pb.OUTCOME_OK,
                state=pb.Sequence.RESIDENT,
                first_block=known,
                block_table=range(known, blocks),
                cached_tokens=cached,
                gpu_tokens=cached,
            )
            return pb.Result(allocate=response)
        case "grow":
            return pb.Result(grow=grown(operation.grow, set(), 0))
        case "swap":
            if operation.swap.direction == pb.SwapRequest.IN:
                swap = pb.SwapResponse(outcome=pb.OUTCOME_OK, state=pb.Sequence.SWAPPING_IN, block_table=[1])
            else:
                swap = pb.SwapResponse(outcome=pb.OUTCOME_OK, state=pb.Sequence.SWAPPING_OUT)
            return pb.Result(swap=swap)
        case kind:
            return pb.Result(**{str(kind): getattr(pb.Result(), str(kind))})


def grown(request: pb.GrowRequest, kept: set[int], frames_short: int) -> pb.GrowResponse:
    """`kept`: those that get no frames."""
    response = pb.GrowResponse()
    columns = zip(request.sequences, request.token_counts, request.known_blocks, strict=True)
    for place, (sequence, token_count, known) in enumerate(columns):
        frames = [] if sequence in kept else range(known, token_count // BLOCK_TOKENS)
        response.frame_counts.append(len(frames))
        response.frames.extend(frames)
        if sequence in kept:
            other = response.others.add(place=place).result
            other.outcome, other.state = pb.OUTCOME_LATER, pb.Sequence.RESIDENT
            other.frames_short = frames_short
    return response


def refused(
    sequences: Iterable[int], frames_short: int, state: pb.Sequence.State.ValueType = pb.Sequence.RESIDENT
) -> Answer:
    """As `granted`, but these sequences get no frames."""
    kept = set(sequences)

    def answer(operation: pb.Operation) -> pb.Result:
        if operation.WhichOneof("kind") == "allocate" and operation.allocate.sequence in kept:
            response = pb.AllocateResponse(outcome=pb.OUTCOME_LATER, state=state, frames_short=frames_short)
            return pb.Result(allocate=response)
        if operation.WhichOneof("kind") == "grow":
            return pb.Result(grow=grown(operation.grow, kept, frames_short))
        return granted(operation)

    return answer


def moved(
    sequence: int, state: pb.Sequence.State.ValueType, table: Iterable[int] = (), valid: int = 0
) -> pb.Event:
    return pb.Event(
        revision=1,
        sequence_moved=pb.SequenceMoved(
            sequence=sequence, state=state, block_table=list(table), valid_tokens=valid
        ),
    )


def kinds(operations: Iterable[pb.Operation]) -> list[str]:
    names = []
    for operation in operations:
        kind = str(operation.WhichOneof("kind"))
        if kind == "swap":
            kind = "swap_in" if operation.swap.direction == pb.SwapRequest.IN else "swap_out"
        names.append(kind)
    return names


@pytest.mark.parametrize(("tokens", "keys", "room"), [(33, 2, 48), (32, 1, 32), (16, 0, 16), (1, 0, 16)])
def test_a_new_sequence_is_asked_for_by_the_keys_of_what_need_not_be_computed(tokens, keys, room):
    talk = Talk()
    stream = talk.submit(tokens)
    [operation] = talk.step(granted)
    assert operation.allocate.token_count == room
    assert list(operation.allocate.block_keys) == block_keys(stream.tokens, BLOCK_TOKENS)[:keys]
    assert (operation.allocate.session, operation.allocate.turn) == ("s", 1)
    assert talk.changed == [stream]
    assert stream.state is StreamState.RUNNING


def test_prefill_keeps_to_the_grid_whatever_was_cached():
    talk = Talk()
    stream = talk.submit(600)
    talk.step(lambda operation: granted(operation, cached=48))
    assert stream.cached == Cached(gpu=48, cpu=0, disk=0)
    sizes = [talk.run()[1] for _ in range(4)]
    assert sizes == [CHUNK_TOKENS - 48, CHUNK_TOKENS, 600 - 2 * CHUNK_TOKENS, 1]


def test_blocks_are_committed_in_the_step_after_the_one_that_filled_them():
    talk = Talk()
    stream = talk.submit(300)
    talk.step(lambda operation: granted(operation, cached=32))
    talk.run()
    [commit] = talk.step(granted)
    assert (commit.commit.first_block, len(commit.commit.block_keys)) == (2, 14)
    assert list(commit.commit.block_keys) == stream.chain.keys[2:16]
    talk.run()
    [commit] = talk.step(granted)
    assert (commit.commit.first_block, len(commit.commit.block_keys)) == (16, 2)
    assert talk.step(granted) == []


def test_a_finished_turn_is_committed_and_freed_in_one_step():
    talk = Talk()
    stream = talk.submit(31, answer=2)
    talk.step(granted)
    talk.run()
    talk.step(granted)
    talk.run()
    assert stream.state is StreamState.FINISHED
    assert stream.answer == [7, 7]
    commit, free = talk.step(granted)
    # The 32nd token was fed to the model, and fills the second block; the last was not.
    assert (commit.commit.first_block, len(commit.commit.block_keys)) == (1, 1)
    assert free.free.retention == pb.FreeRequest.SESSION
    assert not talk.scheduler.has_work


def test_all_that_decode_run_as_one_batch_and_prefill_goes_first():
    talk = Talk()
    first, second = talk.submit(20), talk.submit(20, first=100)
    talk.step(granted)
    assert talk.run() == ([first], 20)
    assert talk.run() == ([second], 20)
    assert talk.run() == ([first, second], 1)
    third = talk.submit(20, first=200)
    talk.step(granted)
    assert talk.run() == ([third], 20)


def test_no_more_run_at_once_than_may():
    talk = Talk(running_max=2)
    streams = [talk.submit(20, first=100 * i) for i in range(3)]
    assert kinds(talk.step(granted)) == ["allocate", "allocate"]
    assert [each.state for each in streams] == [StreamState.RUNNING] * 2 + [StreamState.QUEUED]


def test_growth_that_finds_no_room_swaps_out_the_most_recent_of_the_lowest_priority():
    talk = Talk()
    old, urgent, young = talk.submit(30), talk.submit(40, first=100, priority=1), talk.submit(40, first=200)
    talk.run_to_decode(granted, 3)
    talk.run()
    talk.run()
    talk.step(refused([old.sequence], frames_short=1))
    operations = talk.step(refused([old.sequence], frames_short=0))
    assert kinds(operations) == ["swap_out", "grow"]
    assert operations[0].swap.sequence == young.sequence
    assert operations[0].swap.filled_tokens == 42
    assert operations[0].swap.mode == pb.SwapRequest.AUTO
    assert young.state is StreamState.PREEMPTED
    # Who has room goes on meanwhile.
    assert talk.run() == ([urgent], 1)


def test_a_preempted_stream_comes_back_when_it_is_away_and_another_has_left():
    talk = Talk()
    old, young = talk.submit(32, answer=3), talk.submit(32, first=100)
    talk.run_to_decode(granted, 2)
    talk.step(refused([young.sequence], frames_short=1))
    assert kinds(talk.step(granted)) == ["swap_out"]
    talk.run()
    # It is away, but nobody has left since: it would only push the other one out.
    assert kinds(talk.step(granted, [moved(young.sequence, pb.Sequence.SWAPPED)])) == []
    talk.run()
    assert old.is_done
    assert kinds(talk.step(granted)) == ["free", "swap_in"]
    assert young.state is StreamState.LOADING
    assert talk.scheduler.is_waiting
    talk.step(granted, [moved(young.sequence, pb.Sequence.RESIDENT, [4, 5], valid=32)])
    assert (young.state, young.computed, young.preemptions) == (StreamState.RUNNING, 32, 1)
    assert talk.changed == [young]


def test_none_overtakes_a_stream_that_comes_back():
    talk = Talk()
    old, young = talk.submit(30, answer=4), talk.submit(30, first=100)
    talk.run_to_decode(granted, 2)
    talk.run()
    talk.run()
    late = talk.submit(32, first=200)
    talk.step(refused([young.sequence, 3], frames_short=1))
    assert kinds(talk.step(granted)) == ["swap_out"]
    talk.run()
    assert old.is_done
    operations = talk.step(granted, [moved(young.sequence, pb.Sequence.SWAPPED)])
    assert kinds(operations) == ["free"]
    assert kinds(talk.step(granted)) == ["swap_in"]
    assert kinds(talk.step(granted)) == ["allocate"]
    assert (young.state, late.state) == (StreamState.LOADING, StreamState.RUNNING)


def test_when_room_is_coming_nobody_goes():
    talk = Talk()
    streams = [talk.submit(30), talk.submit(30, first=100)]
    talk.run_to_decode(granted, 2)
    talk.run()
    talk.run()
    for _ in range(3):
        operations = talk.step(refused([each.sequence for each in streams], frames_short=0))
        assert kinds(operations)[-1] == "grow"
        assert list(operations[-1].grow.sequences) == [each.sequence for each in streams]
    assert talk.run() == ([], 0)
    assert talk.scheduler.is_waiting


def test_a_new_stream_preempts_none_of_its_own_priority():
    talk = Talk()
    talk.submit(32)
    talk.run_to_decode(granted, 1)
    equal = talk.submit(32, first=100)
    dropped = pb.Sequence.DROPPED
    first = talk.step(refused([2], frames_short=2, state=dropped))[-1]
    assert list(first.allocate.block_keys) == equal.chain.keys[:1]
    again = talk.step(refused([2], frames_short=2, state=dropped))
    assert kinds(again) == ["allocate"]
    assert not again[0].allocate.block_keys  # The store has kept them.


def test_a_new_stream_of_higher_priority_does():
    talk = Talk()
    low = talk.submit(20)
    talk.run_to_decode(granted, 1)
    urgent = talk.submit(32, first=100, priority=5)
    talk.step(refused([2], frames_short=2, state=pb.Sequence.DROPPED))
    operations = talk.step(granted)
    assert kinds(operations) == ["swap_out", "allocate"]
    assert (low.state, urgent.state) == (StreamState.PREEMPTED, StreamState.RUNNING)


def test_what_can_never_fit_fails_with_a_reason_and_the_rest_goes_on():
    talk = Talk()
    large, small = talk.submit(4000), talk.submit(20, first=5000)

    def answer(operation: pb.Operation) -> pb.Result:
        if operation.allocate.sequence == 1:
            return pb.Result(allocate=pb.AllocateResponse(outcome=pb.OUTCOME_NEVER))
        return granted(operation)

    talk.step(answer)
    assert large.state is StreamState.FAILED
    assert "250 blocks" in large.reason
    assert talk.changed == [large, small]
    assert talk.run() == ([small], 20)


def test_a_load_that_brings_less_leaves_more_to_compute():
    talk = Talk()
    stream = talk.submit(100)

    def loading(operation: pb.Operation) -> pb.Result:
        result = granted(operation, cached=96)
        result.allocate.state = pb.Sequence.SWAPPING_IN
        return result

    talk.step(loading)
    assert stream.state is StreamState.LOADING
    assert talk.run() == ([], 0)
    talk.step(granted, [moved(stream.sequence, pb.Sequence.RESIDENT, range(7), valid=32)])
    assert talk.run() == ([stream], 68)
    [commit] = talk.step(granted)
    assert commit.commit.first_block == 2


def test_a_load_that_fails_is_asked_for_again():
    talk = Talk()
    stream = talk.submit(100)

    def loading(operation: pb.Operation) -> pb.Result:
        result = granted(operation, cached=96)
        result.allocate.state = pb.Sequence.SWAPPING_IN
        return result

    talk.step(loading)
    talk.step(granted, [moved(stream.sequence, pb.Sequence.DROPPED)])
    assert kinds(talk.step(granted)) == ["swap_in"]


def test_after_a_loss_all_are_admitted_again_by_key_with_the_tokens_so_far():
    talk = Talk()
    stream = talk.submit(30, answer=40)
    talk.step(granted)
    talk.run()
    for _ in range(4):
        talk.step(granted)
        talk.run()
    assert len(stream.tokens) == 35
    talk.scheduler.start_over()
    talk.tables = BlockTables(BLOCK_TOKENS)
    [operation] = talk.step(granted)
    assert operation.allocate.sequence == 2
    assert list(operation.allocate.block_keys) == block_keys(stream.tokens, BLOCK_TOKENS)[:2]
    assert talk.run() == ([stream], 35)
    assert stream.answer == [7] * 6
