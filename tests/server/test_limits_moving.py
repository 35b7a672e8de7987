"""Limits of links that are set and lifted while blocks move."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import (
    BLOCK_BYTES,
    DEADLINE_SECONDS,
    Engine,
    Service,
    allocate,
    content,
    fill,
    free,
    until,
)
from tests.server.limits import DISK, link, rates, update


@pytest.fixture
def service(make_service: Callable[..., Service], folder: Path) -> Service:
    return make_service("--disk", str(folder / "disk"), "--disk-bytes", DISK).start()


def test_a_limit_slows_a_turn_on_its_way_to_disk_and_lifting_it_lets_it_go(service):
    """Slow by far more than a machine can be: at 1 byte a second nothing would come down in an hour."""
    with service.stub() as stub, Engine(stub) as engine:
        update(service, rates(gpu_to_cpu=pb.RateLimit(bytes_per_second=1)))
        # What a link begins with goes at once, and is paid for after.
        for sequence, keys in ((1, range(8)), (2, range(8, 16))):
            fill(engine, sequence, keys, session=f"s{sequence}")
            engine.step(free(sequence, pb.FreeRequest.SESSION))
            engine.step()

        def usage() -> pb.Usage:
            return stub.GetUsage(pb.GetUsageRequest(), timeout=DEADLINE_SECONDS)

        def copies() -> pb.LinkUsage:
            return link(usage(), pb.TIER_GPU, pb.TIER_CPU)

        held = until(copies, lambda seen: seen.blocks_started == 16)
        assert held.blocks_moved < 16
        assert held.bytes_in_flight > 0
        update(service, rates(gpu_to_cpu=pb.RateLimit(unlimited=True)))
        until(usage, lambda seen: link(seen, pb.TIER_CPU, pb.TIER_DISK).blocks_moved == 16)
        assert copies().blocks_moved == 16
        assert copies().busy_seconds > 0
        assert copies().bytes_in_flight == 0


def test_case_6_11_many_who_want_one_prefix_share_one_load(make_service):
    """CASES.md 6.11: each of its blocks moves up once, and all who wait for it wake at its end."""
    service = make_service(gpu_frames=64, cpu_frames=64).start()
    with service.stub() as stub, Engine(stub) as engine:
        keys = range(16)
        fill(engine, 1, keys)
        swap = pb.Operation(
            swap=pb.SwapRequest(
                sequence=1, direction=pb.SwapRequest.OUT, mode=pb.SwapRequest.KEEP, filled_tokens=64
            )
        )
        engine.step(swap)
        engine.step()

        def usage() -> pb.Usage:
            return stub.GetUsage(pb.GetUsageRequest(), timeout=DEADLINE_SECONDS)

        until(usage, lambda seen: link(seen, pb.TIER_GPU, pb.TIER_CPU).blocks_moved >= len(keys))
        # Others take all of the GPU, so the prefix is left below alone.
        engine.step()
        engine.step(allocate(2, 64 * 4))
        engine.step(free(2, pb.FreeRequest.DISCARD))
        engine.step()
        before = link(usage(), pb.TIER_CPU, pb.TIER_GPU)
        update(service, rates(cpu_to_gpu=pb.RateLimit(bytes_per_second=1)))
        waiting = range(10, 50)
        results = engine.step(*(allocate(number, 64 + 1, keys) for number in waiting)).results
        assert {each.allocate.state for each in results} == {pb.Sequence.SWAPPING_IN}
        assert {each.allocate.cached_tokens for each in results} == {64}
        update(service, rates(cpu_to_gpu=pb.RateLimit(unlimited=True)))
        resident: set[int] = set()
        end = time.monotonic() + DEADLINE_SECONDS
        while len(resident) < len(waiting):
            assert time.monotonic() < end
            for event in engine.step().events.events:
                moved = event.sequence_moved
                if moved.state == pb.Sequence.RESIDENT:
                    resident.add(moved.sequence)
                    table = moved.block_table
        after = link(usage(), pb.TIER_CPU, pb.TIER_GPU)
        assert after.blocks_moved - before.blocks_moved == len(keys)
        assert all(engine.read(frame) == content(number) for number, frame in zip(keys, table, strict=False))
        assert len(content(0)) == BLOCK_BYTES
