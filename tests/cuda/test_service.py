"""The real service on fake GPUs, two processes: every byte as it was, and all that goes wrong told."""

import ctypes.util
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kvstore.client import Client, Layout, Refused, ServiceLost, map_shared_rank, operations
from kvstore.server.ending import FORCED
from kvstore.server.gpus import STALLED_SECONDS
from kvstore.v1 import kvstore_pb2 as pb
from tests.cuda.fake import GRANULARITY, FakeDriver, fake_uuid
from tests.cuda.services import FakeGpuService, gpu_engine, rank_bytes
from tests.server.harness import BLOCK_TOKENS, DEADLINE_SECONDS, tier, until
from tests.server.scraping import get, port_of, scrape

BLOCKS = list(range(1, 7))
Make = Callable[..., FakeGpuService]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kv")


@pytest.fixture
def make(folder: Path) -> Iterator[Make]:
    made: list[FakeGpuService] = []

    def make(*flags: str, **sizes: int) -> FakeGpuService:
        made.append(FakeGpuService(folder, *flags, **sizes))
        return made[-1]

    yield make
    for service in made:
        service.end()


def disk_flags(folder: Path) -> tuple[str, ...]:
    return "--disk", str(folder / "disk"), "--disk-bytes", "16MiB"


@pytest.mark.parametrize(
    ("seed", "flags"), [(1, ()), (2, ("--no-batches",)), (3, ("--ipc",))], ids=["fd", "no batches", "ipc"]
)
def test_from_gpu_to_cpu_to_disk_and_back_every_byte_is_as_it_was(
    make: Make, folder: Path, seed: int, flags: tuple[str, ...]
) -> None:
    service = make(*disk_flags(folder), *flags, "--seed", str(seed), ranks=2).start()
    with gpu_engine(service, ranks=2, seed=seed) as engine:
        # To the CPU tier and back, to any frames, that others have used meanwhile.
        table = engine.fill(1, BLOCKS)
        engine.client.step([operations.swap_out(1, len(BLOCKS) * BLOCK_TOKENS, pb.SwapRequest.KEEP)])
        engine.wait_state(1, pb.Sequence.SWAPPED)
        engine.scribble(2)
        engine.client.step([operations.swap_in(1)])
        assert engine.client.wait_resident(1, 60) == len(BLOCKS) * BLOCK_TOKENS
        table = list(engine.client.tables.table(1))
        assert all(engine.holds(frame, number) for frame, number in zip(table, BLOCKS, strict=False))
        engine.client.step([operations.free([1], pb.FreeRequest.DISCARD)])
        engine.client.step([])
        # As the turn of a chat: down to disk by itself.
        engine.fill(3, BLOCKS, session="chat")
        engine.client.step([operations.free([3], pb.FreeRequest.SESSION)])
        engine.client.step([])
        until(
            lambda: tier(engine.client.operator.usage(), pb.TIER_DISK).blocks_moved_in,
            lambda count: count == len(BLOCKS),
        )
    assert service.end() == 0, service.log
    # The next life of the service has it on disk alone.
    service.start()
    with gpu_engine(service, ranks=2, seed=seed + 50) as engine:
        engine.scribble(1)
        engine.allocate(2, BLOCKS)
        assert engine.client.wait_resident(2, 60) == len(BLOCKS) * BLOCK_TOKENS
        table = list(engine.client.tables.table(2))
        assert all(engine.holds(frame, number) for frame, number in zip(table, BLOCKS, strict=False))
        engine.client.detach()
    assert service.end() == 0, service.log
    assert "left behind" not in service.log


def test_a_worker_process_maps_the_gpu_of_its_rank(make: Make) -> None:
    service = make(ranks=2).start()
    with gpu_engine(service, ranks=2) as engine:
        engine.fill(1, BLOCKS)
        front = Client(str(service.socket), deadline_seconds=20.0)
        front.attach(engine.layout, map_ranks=[])
        worker = FakeDriver(devices=2)
        pool = map_shared_rank(front.share_rank(1), cuda=worker)
        assert (pool.rank, pool.device_uuid) == (1, fake_uuid(1))
        assert "ranges" not in worker[0].left_behind
        frame = engine.client.tables.table(1)[0]
        at = pool.device_frames.address + frame * pool.device_frames.shape[1]
        assert ctypes.string_at(at, 6000) == rank_bytes(BLOCKS[0], 1)
        pool.close()
        front.close()
        worker.close()
        assert not worker[1].left_behind


def test_what_the_memory_is_is_told(make: Make) -> None:
    service = make("--metrics", "0", ranks=2).start()
    with gpu_engine(service, ranks=2) as engine:
        usage = until(
            engine.client.operator.usage, lambda usage: tier(usage, pb.TIER_CPU).bytes_pinned == 2 * 32 * 8192
        )
        gpu, cpu = tier(usage, pb.TIER_GPU), tier(usage, pb.TIER_CPU)
        assert gpu.memory_kind == pb.MEMORY_KIND_CUDA
        assert list(gpu.device_uuids) == [fake_uuid(0), fake_uuid(1)]
        assert cpu.memory_kind == pb.MEMORY_KIND_HOST
        assert not cpu.pinning_problem
        assert scrape(service)['kvstore_pinned_bytes{tier="cpu"}'] == 2 * 32 * 8192
        # The bytes that were asked for are a bound: rounded down to whole pages of each device.
        assert gpu.frames_total * 8192 <= 32 * 8192 // GRANULARITY * GRANULARITY


def healthz(service: FakeGpuService) -> str:
    return get(port_of(service), "/healthz").text


def test_a_gpu_that_stands_still_is_told_and_waited_for(make: Make) -> None:
    service = make("--metrics", "0", "--hurry", "0.1").start()
    with gpu_engine(service) as engine:
        engine.fill(1, BLOCKS)
        service.send(signal.SIGUSR1)
        engine.client.step([operations.swap_out(1, len(BLOCKS) * BLOCK_TOKENS, pb.SwapRequest.KEEP)])
        engine.client.step([])
        page = until(lambda: healthz(service), lambda page: "the GPU stands still" in page)
        assert page.startswith("ok\n")
        usage = engine.client.operator.usage()
        assert tier(usage, pb.TIER_GPU).copy_stalled_seconds > 0.1 * STALLED_SECONDS
        assert scrape(service)['kvstore_copy_stalled_seconds{tier="gpu"}'] > 0.1 * STALLED_SECONDS
        # Nothing has failed, and calls are answered.
        assert not tier(usage, pb.TIER_CPU).blocks_failed
        assert engine.client.tables.state(1) == pb.Sequence.SWAPPING_OUT
        service.send(signal.SIGUSR1)
        engine.wait_state(1, pb.Sequence.SWAPPED)
        assert tier(engine.client.operator.usage(), pb.TIER_GPU).copy_stalled_seconds == 0


def test_a_stop_while_a_gpu_stands_still_has_a_deadline(make: Make) -> None:
    service = make("--hurry", "0.1").start()
    with gpu_engine(service) as engine:
        engine.fill(1, BLOCKS)
        service.send(signal.SIGUSR1)
        engine.client.step([operations.swap_out(1, len(BLOCKS) * BLOCK_TOKENS, pb.SwapRequest.KEEP)])
        engine.client.step([])
        process = service.process
        assert process is not None
        service.send(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0
    assert f"{fake_uuid(0)} does not end" in service.log


@pytest.mark.parametrize("hangs", ["create", "pin", "streams"])
def test_a_stop_comes_to_its_end_though_the_first_attach_hangs_in_the_driver(make: Make, hangs: str) -> None:
    """In a call that never returns, and in copies to measure the links that never end."""
    begun = "made pools of" if hangs == "streams" else f"{hangs} does not return"
    flags = [] if hangs == "streams" else ["--hang", hangs]
    service = make("--hurry", "0.02", *flags).start()
    if hangs == "streams":
        service.send(signal.SIGUSR1)
    layout = Layout(block_tokens=4, block_bytes=6000, ranks=1, fingerprint=b"f" * 32)

    def attach() -> str:
        with Client(str(service.socket), deadline_seconds=1.0) as client, suppress(ServiceLost, Refused):
            client.attach(layout, map_ranks=[])
        return service.log

    until(attach, lambda told: begun in told)
    process = service.process
    assert process is not None
    assert process.poll() is None
    service.send(signal.SIGTERM)
    assert process.wait(DEADLINE_SECONDS) == FORCED
    assert "something hangs; the process ends by force" in service.log


def test_a_lost_gpu_ends_the_service_which_says_why_and_keeps_what_is_on_disk(
    make: Make, folder: Path
) -> None:
    service = make(*disk_flags(folder)).start()
    process = service.process
    assert process is not None
    with gpu_engine(service) as engine:
        engine.fill(1, BLOCKS, session="chat")
        engine.client.step([operations.free([1], pb.FreeRequest.SESSION)])
        engine.client.step([])
        until(
            lambda: tier(engine.client.operator.usage(), pb.TIER_DISK).blocks_moved_in,
            lambda count: count == len(BLOCKS),
        )
        engine.fill(2, [50, 51])
        service.send(signal.SIGUSR2)
        engine.client.step([operations.swap_out(2, 2 * BLOCK_TOKENS, pb.SwapRequest.KEEP)])
        with suppress(ServiceLost, Refused):
            engine.client.step([])
        assert process.wait(DEADLINE_SECONDS) == 1
    assert f"the store can't go on: {fake_uuid(0)} is lost" in service.log
    service.start()
    with gpu_engine(service, seed=9) as engine:
        engine.allocate(2, BLOCKS)
        assert engine.client.wait_resident(2, 60) == len(BLOCKS) * BLOCK_TOKENS
        table = list(engine.client.tables.table(2))
        assert all(engine.holds(frame, number) for frame, number in zip(table, BLOCKS, strict=False))


def test_a_gpu_that_is_lost_before_anybody_attaches_ends_the_service_too(make: Make) -> None:
    service = make().start()
    process = service.process
    assert process is not None
    service.send(signal.SIGUSR2)
    with Client(str(service.socket), deadline_seconds=20.0) as client:
        layout = Layout(block_tokens=4, block_bytes=6000, ranks=1, fingerprint=b"f" * 32)
        with pytest.raises((ServiceLost, Refused)):
            client.attach(layout, map_ranks=[])
    assert process.wait(DEADLINE_SECONDS) == 1
    assert f"no pools were made: {fake_uuid(0)} is lost" in service.log


def test_what_can_not_be_pinned_is_told_and_all_works(make: Make) -> None:
    service = make("--metrics", "0", "--fail", "pin").start()
    with gpu_engine(service) as engine:
        engine.fill(1, BLOCKS)
        engine.client.step([operations.swap_out(1, len(BLOCKS) * BLOCK_TOKENS, pb.SwapRequest.KEEP)])
        engine.wait_state(1, pb.Sequence.SWAPPED)
        cpu = tier(engine.client.operator.usage(), pb.TIER_CPU)
        assert cpu.bytes_pinned == 0
        assert "host RAM" in cpu.pinning_problem
        page = healthz(service)
        assert "pinned to 0 B of 256 KiB" in page
        assert cpu.pinning_problem in page
        assert scrape(service)['kvstore_pinned_bytes{tier="cpu"}'] == 0
        assert "lower --cpu" in service.log


def test_other_ranks_than_there_are_gpus_are_refused(make: Make) -> None:
    service = make(ranks=2).start()
    with gpu_engine(service, ranks=2) as engine:
        engine.client.detach()
        layout = Layout(block_tokens=4, block_bytes=6000, ranks=3, fingerprint=b"f" * 32)
        with pytest.raises(Refused):
            engine.client.attach(layout)
    service.end()
    service.start()
    with Client(str(service.socket)) as client:
        with pytest.raises(Refused, match="2 GPU") as caught:
            client.attach(Layout(block_tokens=4, block_bytes=6000, ranks=3, fingerprint=b"f" * 32))
        assert caught.value.field == "layout.ranks"
        assert fake_uuid(0) in caught.value.message
        assert "--gpu-device" in caught.value.remedy


def test_want_of_the_gpus_memory_is_refused_with_the_sizes(make: Make) -> None:
    """Others have it: the driver tells less free than there is, here by a pool of a frame too much."""
    service = make("--memory-bytes", str(4 * GRANULARITY), "--fail", "create", gpu_frames=32).start()
    layout = Layout(block_tokens=4, block_bytes=6000, ranks=1, fingerprint=b"f" * 32)
    with Client(str(service.socket), deadline_seconds=30.0) as client:
        # Tried again, as an engine of the service before may hold it: the second time it is there.
        client.attach(layout, map_ranks=[])
        client.close()
    assert "asks for 262144 bytes" in service.log
    assert f"{4 * GRANULARITY} are free" in service.log


def test_more_than_the_gpu_has_is_refused_at_the_start(make: Make) -> None:
    service = make("--memory-bytes", str(GRANULARITY))
    with pytest.raises(AssertionError, match=r"--gpu.*at most 65536 bytes"):
        service.start()


def serve_here(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvstore", "serve", "--socket", "/nowhere/k.sock", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_without_a_driver_the_service_says_so(tmp_path: Path) -> None:
    if ctypes.util.find_library("cuda"):
        pytest.skip("there is a driver on this machine")
    for device in ("cuda", fake_uuid(0)):
        done = serve_here("--gpu-device", device)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert "--gpu-device" in done.stderr
        assert "driver" in done.stderr or "kvstore[cuda]" in done.stderr
        assert "leave --gpu-device out" in done.stderr
