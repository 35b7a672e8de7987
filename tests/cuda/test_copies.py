"""Frames through the real movers, on devices that run late and out of order. Cases 3.05, 3.15."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvstore.core.errors import CheckFailed
from kvstore.core.types import COPY, LOAD, Urgency
from kvstore.tiers import cuda_copies, cuda_thread
from kvstore.tiers.cuda_copies import cuda_moves
from kvstore.tiers.cuda_thread import DeviceLost
from kvstore.tiers.movers import Movers
from kvstore.tiers.moves import Part
from kvstore.tiers.pacing import RealClock, TokenBucket
from kvstore.tiers.pinning import Pinning
from tests.cuda.bench import BLOCK_BYTES, WAIT, CudaBench, Ends, cuda_bench, transfer

SEEDS = range(12)


def content(number: int, rank: int) -> bytes:
    return random.Random(number * 64 + rank).randbytes(BLOCK_BYTES)


@contextmanager
def movers(bench: CudaBench) -> Iterator[tuple[Movers, Ends]]:
    ends = Ends()
    made = Movers(bench.gpu, bench.cpu, None, ends)
    yield made, ends
    assert made.close(WAIT)


def part_of(number: int, link, sources, targets) -> Part:
    work = transfer(number, link, sources, targets)
    bucket = TokenBucket(RealClock())
    return Part(
        transfer=work, start=0, stop=len(sources), bucket=bucket, clock=RealClock(), returned=lambda _: None
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_every_block_comes_back_as_it_was_whatever_the_order_of_the_streams(seed: int) -> None:
    """Many transfers at once, down to any frames and up to any others, on two ranks, by seed."""
    rng = random.Random(seed)
    options = {"copies_batches": seed % 3 > 0, "exports_fds": seed % 4 > 0}
    with cuda_bench(seed, ranks=2, frames=64, cpu_frames=64, **options) as bench:
        pinning = Pinning(bench.cpu, bench.threads)
        pinning.start()
        start = rng.sample(range(64), 64)
        for number, frame in enumerate(start):
            for rank in range(2):
                bench.write_gpu(rank, frame, content(number, rank))
        below = rng.sample(range(64), 64) if seed % 2 else list(range(64))
        with movers(bench) as (made, ends):
            lots = [range(begin, begin + 8) for begin in range(0, 64, 8)]
            made.start(
                [transfer(lot.start, COPY, [start[n] for n in lot], [below[n] for n in lot]) for lot in lots],
                [],
            )
            assert ends.wait(len(lots)) == {lot.start: () for lot in lots}
            for number in range(64):
                for rank in range(2):
                    held = bench.cpu.frames(rank)[below[number]][:BLOCK_BYTES].tobytes()
                    assert held == content(number, rank), (number, rank)
                    bench.write_gpu(rank, start[number], b"\xee" * BLOCK_BYTES)
            again = rng.sample(range(64), 64)
            made.start(
                [
                    transfer(100 + lot.start, LOAD, [below[n] for n in lot], [again[n] for n in lot])
                    for lot in lots
                ],
                [],
            )
            ends.wait(2 * len(lots))
        assert not any(ends.failed.values())
        for number in range(64):
            for rank in range(2):
                assert bench.read_gpu(rank, again[number]) == content(number, rank), (number, rank)
        pinning.close()


def test_neighbours_go_as_one_copy_and_never_over_the_end_of_a_pinned_piece() -> None:
    with cuda_bench(frames=32, cpu_frames=32, copies_batches=False) as bench:
        pin_bytes = 5 * bench.cpu.stride_bytes
        pinning = Pinning(bench.cpu, bench.threads, piece_bytes=pin_bytes)
        pinning.start()
        while not pinning.is_over:
            pass
        down, up = cuda_moves(bench.gpu, bench.cpu, pin_bytes=pin_bytes)
        device = bench.devices[0]
        for move, link in ((down, COPY), (up, LOAD)):
            before = device.calls["copy"]
            # Frames 3 to 13: 3–4, 5–9, 10–13; then 20 alone.
            end = move(part_of(1, link, [*range(3, 14), 20], [*range(3, 14), 20]))
            assert not end.failed
            assert device.calls["copy"] - before == 4
        # The fake refuses what crosses over: planted, it is found.
        whole, _ = cuda_moves(bench.gpu, bench.cpu, pin_bytes=1 << 30)
        assert whole(part_of(2, COPY, range(3, 14), range(3, 14))).failed
        pinning.close()


@pytest.mark.parametrize("bad_rank", range(3))
@pytest.mark.parametrize("link", [COPY, LOAD], ids=["down", "up"])
def test_case_3_05_a_piece_that_fails_on_one_rank_fails_on_all_and_when_all_have_ended(
    link, bad_rank
) -> None:
    with cuda_bench(ranks=3) as bench, movers(bench) as (made, ends):
        for device in bench.devices:
            device.streams.stall()
        bench.devices[bad_rank].fail("copy_batch")
        # The failure stands; nothing is told while other ranks may still write.
        made.start([transfer(1, link, range(4), range(4))], [])
        bench.devices[bad_rank].streams.resume()
        with ends.told:
            assert not ends.told.wait_for(lambda: bool(ends.failed), 0.05)
        for device in bench.devices:
            device.streams.resume()
        assert ends.wait(1) == {1: (0, 1, 2, 3)}
        # And the next is as good as any.
        made.start([transfer(2, link, range(4), range(4))], [])
        assert ends.wait(2)[2] == ()


@pytest.mark.parametrize("link", [COPY, LOAD], ids=["down", "up"])
def test_a_stalled_stream_is_waited_for_and_never_reported_failed(link) -> None:
    with cuda_bench() as bench, movers(bench) as (made, ends):
        for device in bench.devices:
            device.streams.stall()
        made.start([transfer(1, link, range(4), range(4))], [])
        with ends.told:
            assert not ends.told.wait_for(lambda: bool(ends.failed), 0.1)
        assert bench.threads[0].stalled_seconds > 0
        assert made.alive()
        bench.devices[0].streams.resume()
        assert ends.wait(1) == {1: ()}


def test_a_lost_device_ends_every_transfer_once_and_the_movers_say_why() -> None:
    with cuda_bench(check_left=False) as bench, movers(bench) as (made, ends):
        bench.devices[0].streams.stall()
        for number in range(6):
            link = (COPY, LOAD)[number % 2]
            frames = range(4 * number, 4 * number + 4)
            made.start([transfer(number, link, frames, frames)], [])
        bench.devices[0].lose()
        assert ends.wait(6) == dict.fromkeys(range(6), (0, 1, 2, 3))
        assert not made.alive()
        assert isinstance(made.error, DeviceLost)


def test_a_device_lost_while_nothing_moves_is_seen_too() -> None:
    with cuda_bench(check_left=False) as bench, movers(bench) as (made, _):
        assert made.alive()
        bench.devices[0].lose()
        with pytest.raises(DeviceLost):
            bench.threads[0].call(lambda device: device.memory_free_bytes())
        assert not made.alive()


def test_a_close_while_a_stream_stands_still_has_a_deadline() -> None:
    with cuda_bench() as bench:
        ends = Ends()
        made = Movers(bench.gpu, bench.cpu, None, ends)
        bench.devices[0].streams.stall()
        made.start([transfer(1, COPY, range(4), range(4))], [])
        assert not made.close(0.05)
        assert not ends.failed
        bench.devices[0].streams.resume()
        assert ends.wait(1) == {1: ()}
        assert made.close(WAIT)


def test_a_limit_holds_for_copies_of_a_device() -> None:
    with cuda_bench(ranks=2) as bench, movers(bench) as (made, ends):
        rate = 4 << 20
        made.set_rate(COPY, rate)
        begin = RealClock().now()
        for number in range(8):
            made.start([transfer(number, COPY, range(16), range(16), Urgency.BACKGROUND)], [])
        assert not any(ends.wait(8).values())
        moved = 8 * 16 * bench.gpu.frame_bytes
        # A bucket lets some go at first.
        assert RealClock().now() - begin >= 0.5 * moved / rate
        for number in range(16):
            bench.write_gpu(0, number, content(number, 0))
        made.start([transfer(9, COPY, range(16), range(16))], [])
        ends.wait(9)
        for number in range(16):
            assert bench.cpu.frames(0)[number][:BLOCK_BYTES].tobytes() == content(number, 0)


def test_frames_outside_of_a_pool_are_a_bug_and_touch_nothing() -> None:
    with cuda_bench(frames=8, cpu_frames=8) as bench:
        down, up = cuda_moves(bench.gpu, bench.cpu)
        for move, link in ((down, COPY), (up, LOAD)):
            for sources, targets in (([8], [0]), ([0], [8]), ([-1], [0]), ([0], [-1])):
                with pytest.raises(CheckFailed, match="outside"):
                    move(part_of(1, link, sources, targets))
        assert not bench.devices[0].calls["copy_batch"]


def test_the_stream_never_runs_dry_between_pieces() -> None:
    """Several pieces are given to the stream before the first has ended."""
    frames = 64
    with cuda_bench(frames=frames, cpu_frames=frames) as bench:
        piece = cuda_copies.CUDA_PIECE_BYTES
        assert 8 << 20 <= piece <= 16 << 20
        with movers(bench) as (made, ends):
            bench.devices[0].streams.stall()
            for number in range(6):
                made.start([transfer(number, COPY, range(8), range(8 * number, 8 * number + 8))], [])
            call = bench.threads[0].call
            end = RealClock().now() + WAIT
            while bench.devices[0].calls["copy_batch"] < cuda_copies.CUDA_THREADS:
                assert RealClock().now() < end
                assert call(lambda device: device.memory_free_bytes())
            bench.devices[0].streams.resume()
            assert not any(ends.wait(6).values())


def test_polling_is_by_short_sleeps() -> None:
    assert 0 < cuda_thread.POLL_SECONDS_MIN <= cuda_thread.POLL_SECONDS_MAX <= 0.002
