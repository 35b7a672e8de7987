"""What the scheduler asks for and computes, step by step, while there is room."""

import pytest

from engine.requests import CHUNK_TOKENS, Cached, StreamState
from kvstore.client import BlockTables, block_keys
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.talk import BLOCK_TOKENS, Talk, granted, kinds, moved, refused


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


def test_what_is_left_behind_a_cached_prefix_is_one_chunk_if_it_is_no_longer_than_one():
    talk = Talk()
    stream = talk.submit(2 * CHUNK_TOKENS + 40)
    talk.step(lambda operation: granted(operation, cached=2 * CHUNK_TOKENS - 160))
    assert [talk.run()[1] for _ in range(2)] == [200, 1]
    assert stream.computed == 2 * CHUNK_TOKENS + 41


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
    # Whether it goes to disk at once is the service's to say.
    assert free.free.retention == pb.FreeRequest.RETENTION_UNSPECIFIED
    assert not talk.scheduler.has_work


def test_all_that_decode_run_in_one_pass_with_a_chunk_of_one_who_does_not_yet():
    talk = Talk()
    first, second, third = talk.submit(20), talk.submit(300, first=100), talk.submit(20, first=500)
    talk.step(granted)
    assert talk.run() == ([first], 20)
    assert talk.run() == ([first, second], 256)
    assert talk.run() == ([first, second], 44)
    assert talk.run() == ([first, second, third], 20)
    assert talk.run() == ([first, second, third], 1)
    assert [len(each.margins) for each in (first, second, third)] == [5, 3, 2]


def test_no_more_run_at_once_than_may():
    talk = Talk(running_max=2)
    streams = [talk.submit(20, first=100 * i) for i in range(3)]
    assert kinds(talk.step(granted)) == ["allocate", "allocate"]
    assert [each.state for each in streams] == [StreamState.RUNNING] * 2 + [StreamState.QUEUED]


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


def test_an_answer_that_memory_can_no_longer_hold_ends_with_what_it_has():
    """As when the service comes back with a smaller GPU tier."""
    talk = Talk()
    stream = talk.submit(31, answer=9)
    talk.run_to_decode(granted, 1)
    talk.run()

    def never(operation: pb.Operation) -> pb.Result:
        result = refused([stream.sequence], frames_short=0)(operation)
        for other in result.grow.others:
            other.result.outcome = pb.OUTCOME_NEVER
        return result

    while stream.has_room:
        talk.step(granted)
        talk.run()
    told = list(stream.answer)
    talk.step(never)
    assert (stream.state, stream.answer) == (StreamState.FINISHED, told)
    assert kinds(talk.step(granted)) == ["free"]


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
