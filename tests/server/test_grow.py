"""Grow says in columns what an Allocate of each sequence says."""

import random

import grpc
import pytest

from kvstore.client import operations as ops
from kvstore.client.errors import Refused
from kvstore.client.statuses import from_rpc
from kvstore.client.tables import BlockTables
from kvstore.core.answers import StepAnswer
from kvstore.core.errors import FieldInvalid, KVStoreError
from kvstore.core.store import Store
from kvstore.server.clock import now
from kvstore.server.decode_step import decode_step
from kvstore.server.encode import encode_step
from kvstore.v1 import kvstore_pb2 as pb
from tests.core.caller import Caller
from tests.core.world import BLOCK_TOKENS, World, make_store
from tests.server.harness import Engine, Service, allocate


class Front:
    """An engine that speaks the contract to a store without a server between."""

    def __init__(self, gpu_frames: int) -> None:
        world = World(make_store(gpu_frames=gpu_frames, cpu_frames=4))
        self.store: Store = world.store
        self.caller = Caller(world)
        self.tables = BlockTables(BLOCK_TOKENS)
        self.steps = 0

    def step(self, *operations: pb.Operation) -> pb.StepResponse:
        request = pb.StepRequest(
            engine=f"engines/{self.caller.id}",
            step=self.steps + 1,
            completed_step=self.steps,
            operations=operations,
        )
        answer = self.store.handle(decode_step(request, now())).answer
        self.steps += 1
        assert isinstance(answer, StepAnswer)
        response = encode_step(self.caller.id, answer)
        self.tables.apply(operations, response)
        return response


@pytest.mark.parametrize("seed", range(6))
def test_columns_lead_to_the_same_tables_as_allocates(seed: int) -> None:
    """Small pools, forks and frees: some grow, some are told LATER, some get another last block."""
    rng = random.Random(seed)
    columns, single = Front(gpu_frames=20), Front(gpu_frames=20)
    tokens: dict[int, int] = {}
    others = 0
    for number in range(1, 120):
        first = [ops.allocate(number, rng.randrange(1, 9))] if rng.random() < 0.4 else []
        if tokens and rng.random() < 0.2:
            first.append(ops.fork(rng.choice(list(tokens)), [1000 + number]))
        if len(tokens) > 4:
            gone = rng.choice(list(tokens))
            del tokens[gone]
            first.append(ops.free([gone]))
        held = [each for each in tokens if columns.tables.table(each)]
        grown = rng.sample(held, rng.randrange(len(held) + 1))
        for sequence in grown:
            tokens[sequence] += rng.randrange(4)
        asked = [(each, tokens[each], len(columns.tables.table(each))) for each in grown]
        grow = ops.grow(*map(list, zip(*asked, strict=True))) if asked else ops.grow([], [], [])
        response = columns.step(*first, grow)
        # A Grow comes before the Allocates, wherever it stands.
        single.step(*(ops.allocate(each, count, known_blocks=known) for each, count, known in asked), *first)
        others += len(response.results[-1].grow.others)
        for operation in first:
            if operation.HasField("allocate"):
                tokens[operation.allocate.sequence] = operation.allocate.token_count
            elif operation.HasField("fork") and operation.fork.children[0] in columns.tables:
                child = operation.fork.children[0]
                tokens[child] = max(1, BLOCK_TOKENS * len(columns.tables.table(child)))
        for sequence in tokens:
            assert columns.tables.table(sequence) == single.tables.table(sequence)
            assert columns.tables.state(sequence) == single.tables.state(sequence)
    assert others > 5


@pytest.mark.parametrize(
    "operations",
    [
        [ops.allocate(1, 24, known_blocks=2), ops.grow([1], [12], [2])],
        [ops.grow([1, 3], [24, 4], [2, 0]), ops.grow([1], [12], [2])],
        [ops.grow([3], [12], [0]), ops.allocate(3, 4)],
    ],
    ids=["an Allocate before", "a Grow before that can't be served as such", "a new one"],
)
def test_what_a_step_asks_twice_of_a_sequence_is_taken_in_as_it_was_applied(
    operations: list[pb.Operation],
) -> None:
    front = Front(gpu_frames=16)
    front.step(ops.allocate(1, 8))
    front.step(*operations)
    for sequence in (1, 3) if 3 in front.tables else (1,):
        assert front.tables.table(sequence) == list(front.caller.table(sequence))


def test_an_answer_holds_frames_and_counts_and_no_message_for_each() -> None:
    front = Front(gpu_frames=16)
    front.step(ops.allocate(1, 4), ops.allocate(2, 4))
    [result] = front.step(ops.grow([1, 2], [12, 5], [1, 1])).results
    assert list(result.grow.frame_counts) == [2, 1]
    assert [*front.tables.table(1)[1:], *front.tables.table(2)[1:]] == list(result.grow.frames)
    assert not result.grow.others


@pytest.mark.parametrize(
    ("operations", "field"),
    [
        (
            [pb.Operation(grow=pb.GrowRequest(sequences=[1, 2], token_counts=[4]))],
            "operations[0].grow.token_counts",
        ),
        (
            [pb.Operation(grow=pb.GrowRequest(sequences=[1], token_counts=[4], known_blocks=[1, 1]))],
            "operations[0].grow.known_blocks",
        ),
        ([ops.grow([1] * 4096, [4] * 4096, [1] * 4096), ops.free([9])], "operations"),
        ([ops.free([9]), ops.grow([1, 2], [4, 0], [1, 0])], "operations[1].grow.token_counts[1]"),
        ([ops.grow([1, 2], [4, 4], [1, 9])], "operations[0].grow.known_blocks[1]"),
        ([ops.grow([1, 2], [4, 4], [1, 1]), ops.allocate(3, 0)], "operations[1].allocate.token_count"),
        ([ops.grow([], [], []), ops.swap_in(77)], "operations[1].swap.sequence"),
        ([ops.grow([1], [4], [1]), ops.grow([2], [0], [0])], "operations[1].grow.token_counts[0]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_names_the_column_and_the_place(operations: list[pb.Operation], field: str) -> None:
    front = Front(gpu_frames=16)
    front.step(ops.allocate(1, 4), ops.allocate(2, 4))
    with pytest.raises(KVStoreError) as refused:
        front.step(*operations)
    assert isinstance(refused.value, FieldInvalid) or "swap" in field
    assert refused.value.field == field


def test_the_service_grows_in_columns_and_a_retry_is_answered_alike(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        first = engine.step(allocate(1, 4), allocate(2, 4))
        grow = ops.grow([1, 2], [8, 8], [1, 1])
        answer = engine.step(grow)
        engine.steps -= 1
        assert engine.step(grow).results == answer.results
        frames = [
            *(result.allocate.block_table[0] for result in first.results),
            *answer.results[0].grow.frames,
        ]
        assert len(set(frames)) == 4
        with pytest.raises(grpc.RpcError) as error:
            engine.step(ops.grow([1], [0], [1]))
        refused = from_rpc(error.value, "")
        assert isinstance(refused, Refused)
        assert refused.field == "operations[0].grow.token_counts[0]"
