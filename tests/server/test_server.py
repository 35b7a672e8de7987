"""The real server in its own process: what an engine sees of it."""

import os
import time
import uuid

import grpc
import pytest

from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    DEADLINE_SECONDS,
    GPU_FRAMES,
    LEASE_SECONDS,
    Engine,
    Service,
    TetherRefused,
    allocate,
    content,
    fill,
    free,
    key,
    layout,
    open_tether,
    refusal,
    until,
)
from tests.server.refusals import MakeService, refused

# -------------------------------------------------------------------------- one engine


def test_bytes_written_through_the_map_are_found_by_key(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        [handle] = engine.attached.pools
        assert (handle.tier, handle.frame_count, handle.frame_stride_bytes) == (pb.TIER_GPU, GPU_FRAMES, 8192)
        table = fill(engine, 1, range(3))
        engine.step(free(1))
        engine.step()
        found = stub.Lookup(
            pb.LookupRequest(engine=engine.name, block_keys=[key(number) for number in range(5)])
        )
        assert (found.blocks_cached, dict(found.blocks_by_tier)) == (3, {"gpu": 3})
        response = engine.step(allocate(2, 5 * BLOCK_TOKENS, range(4)))
        allocated = response.results[0].allocate
        assert (allocated.outcome, allocated.cached_tokens) == (pb.OUTCOME_OK, 3 * BLOCK_TOKENS)
        assert (allocated.gpu_tokens, allocated.state) == (3 * BLOCK_TOKENS, pb.Sequence.RESIDENT)
        assert list(allocated.block_table[:3]) == table[:3]
        assert [engine.read(frame) for frame in allocated.block_table[:3]] == [content(n) for n in range(3)]
        lease = response.lease_expire_time.ToNanoseconds() / 1e9 - time.time()
        assert 0 < lease <= LEASE_SECONDS


def test_the_verbs_exist_alone_too(lent: Service) -> None:
    with lent.stub() as stub, Engine(stub) as engine:
        name = engine.name
        first = stub.Allocate(pb.AllocateRequest(engine=name, sequence=1, token_count=6))
        assert (first.outcome, len(first.block_table)) == (pb.OUTCOME_OK, 2)
        stub.Commit(pb.CommitRequest(engine=name, sequence=1, block_keys=[key(1)]))
        assert stub.Fork(pb.ForkRequest(engine=name, parent=1, children=[2])).outcome == pb.OUTCOME_OK
        # Both write into the part-filled block next: the first to ask gets a copy of its own.
        grown = stub.Allocate(pb.AllocateRequest(engine=name, sequence=2, token_count=7))
        assert [copy.source for copy in grown.copies] == [first.block_table[1]]
        swapped = stub.Swap(
            pb.SwapRequest(
                engine=name,
                sequence=2,
                direction=pb.SwapRequest.OUT,
                mode=pb.SwapRequest.DROP,
                filled_tokens=4,
            )
        )
        assert (swapped.outcome, swapped.state) == (pb.OUTCOME_OK, pb.Sequence.DROPPED)
        assert swapped.decision.chosen
        stub.Free(pb.FreeRequest(engine=name, sequences=[1, 2, 99]))
        assert stub.Lookup(pb.LookupRequest(engine=name, block_keys=[key(1)])).blocks_cached == 1
        assert refused(lambda: engine.step())[1] == "STEP_MIXED"
        stub.Detach(pb.DetachRequest(name=name))
        stub.Detach(pb.DetachRequest(name=name))
        assert list(stub.GetUsage(pb.GetUsageRequest()).engines) == []


def test_a_refusal_of_a_verb_names_its_own_field(lent: Service) -> None:
    with lent.stub() as stub, Engine(stub) as engine:
        call = refused(lambda: stub.Allocate(pb.AllocateRequest(engine=engine.name, sequence=1)))
        assert call == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "token_count")


def test_refusals_change_nothing_and_say_what_was_wrong(lent: Service) -> None:
    with lent.stub() as stub, Engine(stub) as engine:
        engine.step(allocate(1, 3))

        def step(number: int, *operations: pb.Operation) -> pb.StepResponse:
            request = pb.StepRequest(
                engine=engine.name, step=number, completed_step=number - 1, operations=operations
            )
            return stub.Step(request)

        field = pb.Operation(commit=pb.CommitRequest(sequence=1, block_keys=[b"short"]))
        unknown = pb.Operation(swap=pb.SwapRequest(sequence=7, direction=pb.SwapRequest.OUT))
        foreign = allocate(2, 3, tenant="somebody")
        assert refused(lambda: step(3))[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "STEP_GAP")
        assert refused(lambda: step(1, allocate(1, 4)))[:2] == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "STEP_CHANGED",
        )
        assert refused(lambda: step(2, field)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "FIELD_INVALID",
            "operations[0].commit.block_keys[0]",
        )
        assert refused(lambda: step(2, unknown)) == (
            grpc.StatusCode.NOT_FOUND,
            "SEQUENCE_UNKNOWN",
            "operations[0].swap.sequence",
        )
        assert refused(lambda: step(2, foreign))[:2] == (grpc.StatusCode.PERMISSION_DENIED, "TENANT")
        assert (
            refused(lambda: stub.Free(pb.FreeRequest(engine=engine.name, sequences=[1])))[1] == "STEP_MIXED"
        )
        assert step(1, allocate(1, 3)).step == 1
        assert step(2, allocate(1, 4)).results[0].allocate.outcome == pb.OUTCOME_OK


def test_case_5_19_an_oversized_message_is_refused_in_our_words(lent: Service) -> None:
    with lent.stub() as stub, Engine(stub) as engine:
        request = pb.LookupRequest(engine=engine.name, block_keys=[b"k" * 32] * (2**21))
        assert refused(lambda: stub.Lookup(request)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "FIELD_INVALID",
            "request",
        )


# ------------------------------------------------------------------------------ attach


def test_before_the_first_attach_there_are_tiers_without_frames(service: Service) -> None:
    with service.stub() as stub:
        usage = stub.GetUsage(pb.GetUsageRequest())
        assert [(each.tier, each.frames_total) for each in usage.tiers] == [
            (pb.TIER_GPU, 0),
            (pb.TIER_CPU, 0),
        ]
        assert usage.store_epoch != 0
        name = f"engines/{uuid.uuid4()}"
        expired = (grpc.StatusCode.NOT_FOUND, "ENGINE_EXPIRED")
        assert refused(lambda: stub.Step(pb.StepRequest(engine=name, step=1)))[:2] == expired
        assert refused(lambda: stub.KeepAlive(pb.KeepAliveRequest(name=name)))[:2] == expired
        stub.Detach(pb.DetachRequest(name=name))


def test_a_retried_attach_is_the_same_engine_with_new_secrets(service: Service) -> None:
    with service.stub() as stub:
        request = pb.AttachRequest(request_id=str(uuid.uuid4()), layout=layout(ranks=2))
        first, second = stub.Attach(request), stub.Attach(request)
        assert first.engine.name == second.engine.name
        assert len(second.fd_secrets) == len(second.pools) == 2
        assert not set(first.fd_secrets) & set(second.fd_secrets)
        with pytest.raises(TetherRefused):
            open_tether(first.fd_socket_path, first.fd_secrets[0])
        tethers = [open_tether(second.fd_socket_path, secret) for secret in second.fd_secrets]
        [engine] = stub.GetUsage(pb.GetUsageRequest()).engines
        assert list(engine.peer_pids) == [os.getpid()] * 2
        for tether, fd in tethers:
            os.close(fd)
            tether.close()
        until(lambda: stub.GetUsage(pb.GetUsageRequest()), lambda usage: not usage.engines)


def test_layouts_that_cannot_be_served_are_refused(service: Service) -> None:
    with service.stub() as stub:

        def attach(**sizes: int) -> pb.AttachResponse:
            return stub.Attach(pb.AttachRequest(request_id=str(uuid.uuid4()), layout=layout(**sizes)))

        huge = refused(lambda: attach(block_bytes=2**20))
        assert huge == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "layout.block_bytes")
        attach()
        mismatch = refused(lambda: attach(block_bytes=BLOCK_BYTES + 1))
        assert mismatch[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "LAYOUT_MISMATCH")


def test_engines_have_a_bound(make_service: MakeService) -> None:
    with make_service("--engines-max", "1").start().stub() as stub, Engine(stub) as engine:
        request = pb.AttachRequest(request_id=str(uuid.uuid4()), layout=layout())
        too_many = (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_ENGINES")
        assert refused(lambda: stub.Attach(request))[:2] == too_many
        engine.step()
        stub.Detach(pb.DetachRequest(name=engine.name))
        stub.Attach(request)


def test_a_secret_dies_with_its_engine(lent: Service) -> None:
    with lent.stub() as stub:
        attached = stub.Attach(pb.AttachRequest(request_id=str(uuid.uuid4()), layout=layout()))
        stub.Detach(pb.DetachRequest(name=attached.engine.name))
        with pytest.raises(TetherRefused):
            open_tether(attached.fd_socket_path, attached.fd_secrets[0])


# ------------------------------------------------------------------------- KeepAlive


def test_a_waiting_keep_alive_is_woken_by_an_event(service: Service) -> None:
    with service.stub() as stub, service.stub() as other, Engine(stub) as engine, Engine(other) as second:
        call = stub.KeepAlive.future(engine.keep_alive_request(wait=30), timeout=60)
        # More than the high watermark in use: told to all.
        second.step(allocate(1, GPU_FRAMES * BLOCK_TOKENS))
        # By itself it would end after half a minute.
        response = call.result(timeout=20)
        [event] = response.events.events
        assert event.pressure_changed.tier == pb.TIER_GPU
        # Told again until it is said to be seen.
        assert engine.keep_alive(seen=0).events.events == response.events.events
        assert not engine.keep_alive(seen=event.revision).events.events


def test_a_swap_is_told_when_it_has_ended(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        tokens = 20 * BLOCK_TOKENS
        engine.step(allocate(1, tokens))
        out = pb.SwapRequest(
            sequence=1, direction=pb.SwapRequest.OUT, mode=pb.SwapRequest.KEEP, filled_tokens=tokens
        )
        assert engine.step(pb.Operation(swap=out)).results[0].swap.state == pb.Sequence.SWAPPING_OUT
        response = until(lambda: engine.keep_alive(wait=5), lambda response: bool(response.events.events))
        moved = response.events.events[0].sequence_moved
        assert (moved.engine, moved.sequence, moved.state) == (engine.name, 1, pb.Sequence.SWAPPED)


def test_waiting_keep_alives_do_not_bar_other_calls(lent: Service) -> None:
    with lent.stub() as stub, Engine(stub) as engine:
        calls = [stub.KeepAlive.future(engine.keep_alive_request(wait=30), timeout=60) for _ in range(200)]
        begin = time.monotonic()
        engine.step(allocate(1, 5), completed=0)
        engine.step(free(1), completed=0)
        # Not after the first of them, which wait for half a minute.
        assert time.monotonic() - begin < 20.0
        # A few wait on, the others were answered to make place; all end with the engine.
        stub.Detach(pb.DetachRequest(name=engine.name))
        for call in calls:
            error = call.exception(timeout=DEADLINE_SECONDS)
            assert error is None or (
                isinstance(error, grpc.RpcError) and refusal(error).reason == "ENGINE_EXPIRED"
            )


def test_every_method_refuses_bytes_that_are_no_message_without_a_word_in_the_log(service: Service) -> None:
    contract = pb.DESCRIPTOR.services_by_name["KVStore"]
    with grpc.insecure_channel(f"unix:{service.socket}") as channel:
        for method in contract.methods:
            call = channel.stream_stream(f"/{contract.full_name}/{method.name}", bytes, bytes)
            with pytest.raises(grpc.RpcError) as error:
                next(call(iter([b"\xff\xff\xff"]), timeout=DEADLINE_SECONDS))
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT, method.name
            told = refusal(error.value)
            assert (told.reason, told.metadata["field"]) == ("FIELD_INVALID", "request"), method.name
    assert service.end() == 0
    assert "WARNING" not in service.log
    assert "Traceback" not in service.log
