"""The CPU pool pinned: in pieces, in the background, or not at all. Cases 5.17, 5.18, 7.03."""

import logging
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from kvstore.tiers.cuda_thread import PAUSE_FACTOR
from kvstore.tiers.pinning import PIECE_BYTES, Pinning, frames_a_piece
from tests.cuda.bench import WAIT, CudaBench, cuda_bench

STRIDE = 8192
# Pieces of three frames and a half: three.
PIECE = 3 * STRIDE + STRIDE // 2


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def pin(bench: CudaBench) -> Pinning:
    return Pinning(bench.cpu, bench.threads, option="--cpu", piece_bytes=PIECE)


def test_pieces_are_of_a_gibibyte_at_most_and_of_whole_frames() -> None:
    assert PIECE_BYTES == 1 << 30
    assert frames_a_piece(1 << 20) == 1024
    assert frames_a_piece(3 << 20) * (3 << 20) <= 1 << 30
    assert frames_a_piece(1 << 30) == 1


def test_all_of_it_is_pinned_piece_by_piece_for_the_device_of_each_rank() -> None:
    with cuda_bench(ranks=2, cpu_frames=10) as bench:
        pinning = pin(bench)
        assert (pinning.pinned_bytes, pinning.total_bytes) == (0, 2 * 10 * STRIDE)
        pinning.start()
        # A piece a rank at once: what is measured first is what copies will take.
        assert pinning.pinned_bytes >= 2 * 3 * STRIDE
        until(lambda: pinning.is_over)
        assert pinning.pinned_bytes == pinning.total_bytes
        assert not pinning.problem
        for rank, device in enumerate(bench.devices):
            first = bench.cpu.address(rank)
            sizes = [3, 3, 3, 1]
            at = [first + 3 * number * STRIDE for number in range(4)]
            assert device.pinned == dict(zip(at, [size * STRIDE for size in sizes], strict=True))
        pinning.close()
        assert not any(device.pinned for device in bench.devices)


def test_case_5_17_one_piece_at_a_time_and_others_come_between() -> None:
    """Pinning holds locks of the driver for all processes: a call of another finds a gap that is longer than
    any piece, and this device's own work goes on meanwhile."""
    spans: list[tuple[float, float]] = []
    seen: list[int] = []

    def slowly() -> None:
        # Progress can be read at any time.
        seen.append(pinning.pinned_bytes // STRIDE)
        begin = time.monotonic()
        time.sleep(0.01)
        spans.append((begin, time.monotonic()))

    with cuda_bench(cpu_frames=21) as bench:
        bench.devices[0].during["pin"] = slowly
        pinning = pin(bench)
        pinning.start()
        while not pinning.is_over:
            assert bench.threads[0].call(lambda device: device.memory_free_bytes()) > 0
        assert seen == [0, 3, 6, 9, 12, 15, 18]
        assert len(spans) == 7
        # The first is pinned by `start`, without a pause after it.
        for before, after in pairwise(spans[1:]):
            assert after[0] - before[1] >= 0.9 * PAUSE_FACTOR * (before[1] - before[0])
        pinning.close()


def test_case_5_18_what_can_not_be_pinned_is_used_unpinned_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And case 7.03: the message has bytes, kind of memory, option and a value that would fit; one that
    failed does not spoil those after it."""
    with cuda_bench(cpu_frames=12) as bench, caplog.at_level(logging.WARNING):
        bench.devices[0].fail("pin", after=1)
        bench.devices[0].fail("pin", after=2, code="CUDA_ERROR_OUT_OF_MEMORY")
        pinning = pin(bench)
        pinning.start()
        until(lambda: pinning.is_over)
        until(lambda: bench.devices[0].calls["pin"] == 4)
        assert pinning.pinned_bytes == 2 * 3 * STRIDE
        [record] = [record for record in caplog.records if record.name == "kvstore.tiers.pinning"]
        message = record.getMessage()
        assert record.levelno == logging.WARNING
        for word in (f"{3 * STRIDE} bytes of host RAM", "not the GPU's memory", "lower --cpu"):
            assert word in message
        assert f"to at most {3 * STRIDE}" in message
        assert "CUDA_ERROR_INVALID_VALUE" in pinning.problem
        pinning.close()


def test_it_ends_in_the_middle() -> None:
    with cuda_bench(cpu_frames=40) as bench:
        bench.devices[0].during["pin"] = lambda: time.sleep(0.005)
        pinning = pin(bench)
        pinning.start()
        pinning.close()
        assert not bench.devices[0].pinned
        assert not pinning.is_over
        calls = bench.devices[0].calls["pin"]
        time.sleep(0.05)
        assert bench.devices[0].calls["pin"] == calls
