"""Row 7.04: every metric moves when what it names happens, in the real service."""

import re
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from kvstore.server.metrics_list import METRICS
from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1.kvstore_pb2_grpc import KVStoreStub
from tests.server.harness import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    DEADLINE_SECONDS,
    Engine,
    Service,
    allocate,
    fill,
    free,
    refusal,
)
from tests.server.metrics_watch import BY_HAND, ON_GPUS, SET, Watch
from tests.server.scraping import Samples, scrape

# Always as they are from the start on.
CONSTANT = {"kvstore_build_info", "kvstore_store_epoch_info", "kvstore_start_time_seconds"}
KEYS = range(1, 13)


def test_7_04_every_metric_of_the_service_moves_over_http(make_service, folder: Path) -> None:
    disk = ("--disk", str(folder / "disk"), "--disk-bytes", "64MiB")
    service: Service = make_service(*disk, "--metrics", "0", cpu_frames=24).start()
    watch = Watch(lambda: scrape(service))
    with service.stub() as stub:
        with Engine(stub) as engine:
            _a_turn_goes_to_disk_and_comes_back(engine, watch)
            _sequences_are_swapped_and_dropped(engine, watch)
            _a_limit_holds_a_swap_up(engine, watch)
            _others_rest_and_make_room(engine, watch)
            _steps_of_every_kind(engine, watch)
            samples = watch.look()
            usage = stub.GetUsage(pb.GetUsageRequest(), timeout=DEADLINE_SECONDS)
        _a_drain_begins_and_is_cancelled(stub, watch)
        _an_engine_falls_silent(stub, watch)
    assert watch.metrics() >= {metric.name for metric in METRICS} - CONSTANT - BY_HAND - SET - ON_GPUS
    _check_identities(samples, usage)
    for name in CONSTANT:
        assert any(value > 0 for each, value in watch.now.items() if each.startswith(name)), name
    assert watch.now["kvstore_metrics_errors_total"] == 0


def _a_drain_begins_and_is_cancelled(stub: KVStoreStub, watch: Watch) -> None:
    stub.Drain(pb.DrainRequest(timeout=Duration(seconds=1)), timeout=DEADLINE_SECONDS)
    assert watch.look()["kvstore_draining"] == 1
    stub.Drain(pb.DrainRequest(cancel=True), timeout=DEADLINE_SECONDS)
    assert watch.look()["kvstore_draining"] == 0


def _a_turn_goes_to_disk_and_comes_back(engine: Engine, watch: Watch) -> None:
    fill(engine, 1, KEYS, session="chat")
    engine.step(free(1, pb.FreeRequest.SESSION))
    engine.step()
    watch.until(lambda seen: seen['kvstore_link_blocks_moved_total{link="cpu_to_disk"}'] >= len(KEYS))
    # Enough others to take its place above, on the GPU and in the CPU tier.
    for number in range(2, 12):
        fill(engine, number, range(100 * number, 100 * number + 7))
        engine.step(free(number))
        engine.step()
        watch.look()
    watch.until(lambda seen: seen['kvstore_blocks_evicted_total{tier="cpu"}'] > 0)
    [result] = engine.step(allocate(20, len(KEYS) * BLOCK_TOKENS + 1, KEYS, session="chat")).results
    hits = (result.allocate.gpu_tokens, result.allocate.cpu_tokens, result.allocate.disk_tokens)
    seen = watch.look()
    told = [seen[f'kvstore_prefix_tokens_hit_total{{tier="{tier}"}}'] for tier in ("gpu", "cpu", "disk")]
    assert tuple(told) == hits
    assert result.allocate.disk_tokens > 0
    watch.until(lambda seen: seen['kvstore_sequences{state="swapping_in"}'] == 0)
    engine.step(free(20, pb.FreeRequest.DISCARD))
    engine.step(pb.Operation(end_session=pb.EndSessionRequest(session="chat")))
    engine.step()
    watch.until(lambda seen: seen["kvstore_blocks_deleted_total"] > 0)


def _sequences_are_swapped_and_dropped(engine: Engine, watch: Watch) -> None:
    def swap_out(sequence: int, mode: pb.SwapRequest.Mode.ValueType) -> pb.SwapResponse:
        request = pb.SwapRequest(sequence=sequence, direction=pb.SwapRequest.OUT, mode=mode, filled_tokens=32)
        [result] = engine.step(pb.Operation(swap=request)).results
        engine.step()
        return result.swap

    for sequence in (31, 32, 33, 34):
        engine.step(allocate(sequence, 32))
    assert swap_out(31, pb.SwapRequest.KEEP).outcome == pb.OUTCOME_OK
    watch.until(lambda seen: seen['kvstore_sequences{state="swapped"}'] == 1)
    swap_out(32, pb.SwapRequest.DROP)
    assert watch.look()["kvstore_drops_total"] == 1
    # The CPU tier is full of what was swapped sooner or later.
    dropped = 0
    for sequence in (33, 34, *range(35, 40)):
        engine.step(allocate(sequence, 32))
        dropped += swap_out(sequence, pb.SwapRequest.KEEP).decision.chosen == "drop"
        watch.look()
    seen = watch.look()
    assert seen["kvstore_drops_for_room_total"] == dropped > 0
    assert seen["kvstore_drops_total"] == dropped + 1
    engine.step(pb.Operation(swap=pb.SwapRequest(sequence=31, direction=pb.SwapRequest.IN)))
    watch.until(lambda seen: seen["kvstore_swaps_in_total"] == 1)
    engine.step(pb.Operation(free=pb.FreeRequest(sequences=range(31, 40))))
    engine.step()


def _a_limit_holds_a_swap_up(engine: Engine, watch: Watch) -> None:
    """So much that what is over in no time stays to be seen."""
    slow = pb.UpdateLimitsRequest()
    slow.limits.rates["gpu_to_cpu"].bytes_per_second = 100
    engine.stub.UpdateLimits(slow, timeout=DEADLINE_SECONDS)
    assert watch.look()['kvstore_link_limit_bytes_per_second{link="gpu_to_cpu"}'] == 100
    # The limit lets the first one pass and waits then; of the others there is one at least in the queue.
    for sequence in (61, 62, 63):
        engine.step(allocate(sequence, 16))
        swap = pb.SwapRequest(
            sequence=sequence, direction=pb.SwapRequest.OUT, mode=pb.SwapRequest.KEEP, filled_tokens=16
        )
        engine.step(pb.Operation(swap=swap))
        engine.step()
    link = 'link="gpu_to_cpu"'
    watch.until(
        lambda seen: (
            seen[f"kvstore_link_blocks_under_way{{{link}}}"] > 0
            and seen[f'kvstore_link_transfers_under_way{{{link},urgency="needed"}}'] > 0
            and seen[f"kvstore_link_transfers_queued{{{link}}}"] > 0
            and seen[f"kvstore_link_bytes_in_flight{{{link}}}"] > 0
            and seen['kvstore_frames_pinned{tier="gpu"}'] > 0
        )
    )
    fast = pb.UpdateLimitsRequest()
    fast.limits.rates["gpu_to_cpu"].unlimited = True
    engine.stub.UpdateLimits(fast, timeout=DEADLINE_SECONDS)
    watch.until(lambda seen: seen[f"kvstore_link_blocks_under_way{{{link}}}"] == 0)
    engine.step(*(free(sequence, pb.FreeRequest.DISCARD) for sequence in (61, 62, 63)))
    engine.step()


def _others_rest_and_make_room(engine: Engine, watch: Watch) -> None:
    engine.step(allocate(41, 32))
    resting = pb.UpdateActivityRequest(sequence=41, activity=pb.ACTIVITY_WAITING, filled_tokens=32)
    engine.step(pb.Operation(update_activity=resting))
    assert watch.look()["kvstore_sequences_idle"] == 1
    assert watch.now['kvstore_frames_idle{tier="gpu"}'] == 8
    engine.step(allocate(42, 32 * BLOCK_TOKENS))
    assert watch.look()["kvstore_preemptions_total"] == 1
    assert watch.now["kvstore_sequences_waiting"] == 1
    engine.step(free(41, pb.FreeRequest.DISCARD), free(42, pb.FreeRequest.DISCARD))
    engine.step()


def _steps_of_every_kind(engine: Engine, watch: Watch) -> None:
    engine.step(allocate(51, 8), allocate(52, 8))
    grow = pb.GrowRequest(sequences=[51, 52], token_counts=[12, 12], known_blocks=[2, 2])
    fork = pb.ForkRequest(parent=51, children=[53])
    engine.step(pb.Operation(grow=grow), pb.Operation(fork=fork))
    engine.step(free(51), free(52), completed=engine.steps - 1)
    assert watch.look()['kvstore_frames_limbo{tier="gpu"}'] > 0
    engine.step(free(53))
    engine.step()
    with pytest.raises(grpc.RpcError) as caught:
        engine.step(pb.Operation(swap=pb.SwapRequest(sequence=999, direction=pb.SwapRequest.OUT)))
    engine.steps -= 1
    assert refusal(caught.value).reason == "SEQUENCE_UNKNOWN"
    assert watch.look()['kvstore_refusals_total{reason="sequence_unknown"}'] == 1
    for kind in ("allocate", "grow", "fork", "swap", "free", "commit", "update_activity", "end_session"):
        assert watch.now[f'kvstore_operations_total{{kind="{kind}"}}'] > 0, kind


def _an_engine_falls_silent(stub, watch: Watch) -> None:
    with _with_frames(stub) as silent:
        watch.until(lambda seen: seen['kvstore_frames_quarantined{tier="gpu"}'] == 4)
        assert silent.steps == 1
        assert watch.now['kvstore_engines{state="expired"}'] == 1
    watch.until(lambda seen: seen['kvstore_engines{state="expired"}'] == 0)


def _with_frames(stub) -> Engine:
    """An engine of a short lease that has got four frames within it, on a machine that may be busy."""
    while True:
        engine = Engine(stub, lease=0.3)
        try:
            engine.step(allocate(1, 16))
        except grpc.RpcError:
            engine.close()
        else:
            return engine


def _check_identities(seen: Samples, usage: pb.Usage) -> None:
    into = {"gpu": 0.0, "cpu": 0.0, "disk": 0.0}
    for link in ("gpu_to_cpu", "cpu_to_gpu", "cpu_to_disk", "disk_to_cpu"):

        def of(name: str, link: str = link) -> float:
            return seen[f'kvstore_link_{name}{{link="{link}"}}']

        ended = of("blocks_moved_total") + of("blocks_failed_total")
        assert of("blocks_started_total") == ended + of("blocks_under_way"), link
        assert of("bytes_moved_total") == of("blocks_moved_total") * BLOCK_BYTES
        assert of("blocks_moved_total") > 0, link
        into[link.rpartition("_")[2]] += of("blocks_moved_total")
    for tier, name in zip(usage.tiers, ("gpu", "cpu", "disk"), strict=True):

        def at(metric: str, name: str = name) -> float:
            return seen[f'kvstore_{metric}{{tier="{name}"}}']

        # Counted in the store, and beside it.
        assert tier.blocks_moved_in == into[name]
        assert at("frames_free") + at("frames_used") + at("frames_cached") <= at("frames")
        assert at("memory_used_bytes") <= at("memory_bytes")
        assert at("memory_usage_ratio") == pytest.approx(at("memory_used_bytes") / at("memory_bytes"))
    stored = seen['kvstore_link_blocks_moved_total{link="cpu_to_disk"}']
    held = seen['kvstore_frames{tier="disk"}'] - seen['kvstore_frames_free{tier="disk"}']
    assert stored - seen["kvstore_blocks_deleted_total"] == held
    hits = [value for name, value in seen.items() if name.startswith("kvstore_prefix_blocks_hit_total")]
    assert 0 < sum(hits) <= seen["kvstore_prefix_blocks_queried_total"]
    for name, value in seen.items():
        if "prefix_tokens" in name:
            assert value == seen[name.replace("tokens", "blocks")] * BLOCK_TOKENS
    for histogram in ("store", "call"):
        name = f"kvstore_step_{histogram}_seconds"
        assert seen[f"{name}_count"] == seen[f'{name}_bucket{{le="+Inf"}}']
    assert 0 < seen["kvstore_step_store_seconds_sum"] < seen["kvstore_step_call_seconds_sum"]
    # One step was refused, which is a call that was not answered.
    assert seen["kvstore_step_store_seconds_count"] == seen["kvstore_step_call_seconds_count"]
    assert seen["kvstore_steps_total"] == seen["kvstore_step_store_seconds_count"]


# There are none of these before there is a store, a refusal, a disk or a second tenant.
NOT_YET = (
    "kvstore_disk_",
    "kvstore_refusals_",
    "kvstore_link_blocks_waiting",
    "kvstore_link_transfers_under_way",
    "kvstore_tenant_",
)


def test_before_the_first_attach_all_is_there_and_nothing_is_counted(make_service) -> None:
    samples = scrape(make_service("--metrics", "0").start())
    assert {name.partition("{")[0] for name in samples} >= {
        metric.name
        for metric in METRICS
        if metric.kind != "histogram" and not metric.name.startswith(NOT_YET)
    }
    assert samples['kvstore_memory_bytes{tier="gpu"}'] == samples["kvstore_steps_total"] == 0
    assert sum(value for name, value in samples.items() if re.match("kvstore_.*_total", name)) == 0
