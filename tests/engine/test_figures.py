"""What is held and what of it is live, in tokens; and what is counted from step to step."""

from contextlib import closing

from engine.engine import Engine
from engine.figures import count_tokens
from engine.kv.in_process import InProcess
from engine.kv.set_ups import PAGED
from engine.model import Llama
from engine.models import load_model_weights
from engine.requests import Request, StreamState
from kvstore.client import BlockTables, operations
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.talk import BLOCK_TOKENS, Talk, granted, moved


def test_a_shared_frame_counts_once_with_the_most_that_is_in_it():
    talk = Talk()
    one, other, loading = talk.submit(40), talk.submit(40, first=100), talk.submit(40, first=200)
    talk.step(granted)
    tables = BlockTables(BLOCK_TOKENS)
    asked = [operations.allocate(each.sequence, 48) for each in (one, other, loading)]
    tables.apply(asked, pb.StepResponse(results=[granted(each) for each in asked]))
    tables.apply_events(
        [
            moved(one.sequence, pb.Sequence.RESIDENT, [5, 6, 7]),
            moved(other.sequence, pb.Sequence.RESIDENT, [5, 6, 8]),
            moved(loading.sequence, pb.Sequence.SWAPPING_IN, [5, 9]),
        ]
    )
    one.computed, other.computed = 40, 20
    loading.state, loading.computed = StreamState.LOADING, 30
    # Frames 5 to 9; full are 5 and 6, of 7 there are 8 tokens; 8 is for later and 9 on its way.
    held, live = count_tokens([one, other, loading], tables, BLOCK_TOKENS)
    assert (held, live) == (5 * 16, 16 + 16 + 8)
    assert count_tokens([], tables, BLOCK_TOKENS) == (0, 0)


def test_an_engine_counts_what_it_computes():
    model = Llama(load_model_weights("tiny"))
    with closing(Engine(model, InProcess(64 * 8192), set_up=PAGED)) as engine:
        engine.submit(Request(id="a", prompt=tuple(range(300)), max_new_tokens=4))
        engine.submit(Request(id="b", prompt=(7,), max_new_tokens=3))
        engine.step()
        # What is decoded with a prompt's only token is of that prompt.
        first = engine.figures
        assert (first.requests_running, first.requests_waiting) == (2, 0)
        assert (first.kv_tokens_capacity, first.kv_tokens_held) == (64 * 16, 20 * 16)
        assert (first.steps, first.prompt_tokens_computed, first.kv_tokens_live) == (1, 257, 257)
        while engine.has_work:
            engine.step()
        last = engine.figures
        # Two chunks, of which the last gives a first token, and three more.
        assert (last.steps, last.prompt_tokens_computed, last.preemptions) == (5, 301, 0)
        assert (last.requests_running, last.kv_tokens_held, last.kv_tokens_live) == (0, 0, 0)
