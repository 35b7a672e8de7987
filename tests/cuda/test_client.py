"""A pool on a GPU as an engine maps it: what it is given, and how it ends. Cases 2.19, 5.15."""

import ctypes
import gc
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.client import ClientError, ServiceLost
from kvstore.client.mapping import MappedPool, map_pools
from kvstore.cuda.driver import CudaUnavailable
from kvstore.v1 import kvstore_pb2 as pb
from tests.cuda.bench import BLOCK_BYTES, CudaBench, cuda_bench
from tests.cuda.fake import FakeDriver, fake_uuid


class Tethers:
    """Hands out the descriptor of a pool, and keeps its end of the connection."""

    def __init__(self, path: Path, fd: int | None) -> None:
        self.path = str(path)
        self.ends: list[socket.socket] = []
        self._fd = fd
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.recv(32)
            self.ends.append(connection)
            socket.send_fds(connection, [b"\0"], [] if self._fd is None else [self._fd])

    def is_open(self) -> bool:
        """The last one: whether its holder still lives."""
        self.ends[-1].setblocking(False)
        try:
            return bool(self.ends[-1].recv(1))
        except BlockingIOError:
            return True

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for end in self.ends:
            end.close()


class World:
    """A service's pool, and an engine with a driver of its own."""

    def __init__(self, folder: Path, bench: CudaBench) -> None:
        self.bench = bench
        self.engine = FakeDriver(7)
        self.tethers = Tethers(folder / "t.sock", bench.gpu.fds[0])

    def handle(self) -> pb.PoolHandle:
        pool = self.bench.gpu
        handle = pb.PoolHandle(
            tier=pb.TIER_GPU,
            frame_count=pool.frame_count,
            block_bytes=BLOCK_BYTES,
            frame_stride_bytes=pool.stride_bytes,
        )
        if pool.ipc_handles[0]:
            handle.cuda_ipc.handle = pool.ipc_handles[0]
            handle.cuda_ipc.size_bytes, handle.cuda_ipc.device_uuid = pool.rank_bytes(0), fake_uuid(0)
        else:
            handle.cuda.size_bytes, handle.cuda.device_uuid = pool.rank_bytes(0), fake_uuid(0)
        return handle

    def map(self, handle: pb.PoolHandle | None = None) -> MappedPool:
        response = pb.AttachResponse(
            pools=[handle or self.handle()], fd_secrets=[b"s" * 32], fd_socket_path=self.tethers.path
        )
        [pool] = map_pools(response, [0], BLOCK_BYTES, seconds=5.0, cuda=self.engine)
        return pool

    def close(self) -> None:
        self.tethers.close()
        self.engine.close()


@pytest.fixture(params=[True, False], ids=["descriptor", "ipc"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with cuda_bench(exports_fds=request.param) as bench:
        world = World(tmp_path_factory.mktemp("kv"), bench)
        yield world
        world.close()


def test_frames_are_an_array_of_the_same_memory(world: World) -> None:
    world.bench.write_gpu(0, 3, b"from the service")
    pool = world.map()
    assert pool.device_uuid == fake_uuid(0)
    interface = pool.device_frames.__cuda_array_interface__
    assert interface == {
        "version": 3,
        "shape": (32, 8192),
        "typestr": "|u1",
        "data": (pool.device_frames.address, False),
        "strides": None,
        "stream": None,
    }
    device = world.engine[0]
    assert device.memory.is_device("", pool.device_frames.address, 32 * 8192)
    assert memory_at(pool.device_frames.address + 3 * 8192, 16) == b"from the service"
    with pytest.raises(ClientError, match="device_frames"):
        _ = pool.frames
    pool.close()
    gc.collect(0)


def memory_at(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def test_the_tether_ends_after_the_last_who_holds_the_frames(world: World) -> None:
    """A tensor that was made from them holds them, as torch does."""
    pool = world.map()
    tensor = [pool.device_frames]
    pool.close()
    gc.collect(0)
    with pytest.raises(ServiceLost):
        _ = pool.device_frames
    assert world.tethers.is_open()
    assert world.engine[0].memory.ranges
    seen: list[bool] = []
    for call in ("unmap", "close_ipc"):
        world.engine[0].during[call] = lambda: seen.append(world.tethers.is_open())
    tensor.clear()
    gc.collect(0)
    # Unmapped first.
    assert seen == [True]
    assert not world.tethers.is_open()
    assert not world.engine[0].left_behind


def test_work_under_way_is_waited_for_before_anything_is_unmapped(world: World) -> None:
    pool = world.map()
    device, address, done = world.engine[0], pool.device_frames.address, []
    with device.current():
        stream = device.make_stream()
        device.streams.stall(stream)
        device.launch(stream, [lambda: done.append(memory_at(address, 4))] * 50)
    threading.Timer(0.05, device.streams.resume).start()
    pool.close()
    gc.collect(0)
    assert len(done) == 50
    with device.current():
        device.destroy_stream(stream)
    assert not device.left_behind


@pytest.mark.parametrize("is_lost", [True, False])
def test_the_tether_outlives_a_mapping_that_could_not_be_ended_unless_the_device_is_lost(
    world: World, caplog: pytest.LogCaptureFixture, is_lost: bool
) -> None:
    pool = world.map()
    device = world.engine[0]
    if is_lost:
        device.lose()
    else:
        device.fail("synchronize")
    pool.close()
    gc.collect(0)
    assert world.tethers.is_open() != is_lost
    assert f"a pool on {fake_uuid(0)} may stay mapped" in caplog.text


def test_case_5_15_a_thousand_attachments_leave_nothing(world: World) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        pool = world.map()
        [found] = world.engine[0].memory.ranges.values()
        assert found.size == world.bench.gpu.rank_bytes(0)
        pool.close()
        del pool
        gc.collect(0)
        world.tethers.ends.pop().close()
    assert not world.engine[0].left_behind
    assert len(os.listdir("/proc/self/fd")) == descriptors


# What is kept by a call that fails to give it back.
KEPT = {
    "release": {"handles"},
    "synchronize": {"ranges", "contexts"},
    "unmap": {"ranges", "contexts"},
    "free_range": {"ranges", "contexts"},
    "close_ipc": {"ranges", "contexts"},
    "current again": {"ranges", "contexts"},
    "close": {"contexts"},
}
# Without these there is no mapping; without those nobody knows whether it has ended.
TO_MAP = {"open", "current", "import_fd", "open_ipc", "reserve", "map", "allow", "release"}
TO_UNMAP = {"current again", "synchronize", "unmap", "free_range", "close_ipc"}


@pytest.mark.parametrize("code", ["INVALID_VALUE", "OUT_OF_MEMORY", "ILLEGAL_ADDRESS"])
def test_whatever_call_fails_nothing_is_mapped_without_a_tether(world: World, code: str) -> None:
    """Each call, from the first of a mapping to the last of its end, failing once."""
    world.map().close()
    gc.collect(0)
    calls = list(world.engine[0].calls)
    assert TO_MAP & set(calls)
    assert TO_UNMAP & set(calls)
    for call in [*calls, "current again"]:
        world.engine = FakeDriver(stepped=True)
        before = descriptors(world)
        device = world.engine[0]
        name, _, again = call.partition(" ")
        device.fail(name, after=bool(again), code=f"CUDA_ERROR_{code}")
        told = ""
        try:
            world.map().close()
        except ClientError as error:
            told = str(error)
        gc.collect(0)
        assert bool(told) == (call in TO_MAP), (call, told)
        if told:
            assert fake_uuid(0) in told
            assert f"{name} failed with CUDA_ERROR_{code}" in told
        is_held = call in TO_UNMAP and not device.is_lost
        if call != "open":
            assert world.tethers.is_open() == is_held, call
        if not device.is_lost:
            assert device.left_behind.keys() <= KEPT.get(call, set()), (call, device.left_behind)
        assert descriptors(world) - before == is_held, call


def descriptors(world: World) -> int:
    """Of this process, but for the other ends of tethers and what stands for pages of a device."""
    others = len(world.tethers.ends) + world.engine[0].memory.pages_count
    return len(os.listdir("/proc/self/fd")) - others


def test_a_device_that_is_hidden_is_named_and_no_secret_is_spent(world: World) -> None:
    handle = world.handle()
    getattr(handle, str(handle.WhichOneof("memory"))).device_uuid = fake_uuid(5)
    with pytest.raises(ClientError, match=rf"{fake_uuid(5)}.*CUDA_VISIBLE_DEVICES"):
        world.map(handle)
    assert not world.tethers.ends


def test_without_a_driver_an_engine_is_told_what_to_install(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> FakeDriver:
        raise CudaUnavailable("pip install 'kvstore[cuda]'")

    monkeypatch.setattr("kvstore.client.cuda_mapping.load_driver", missing)
    world.engine.close()
    world.engine = None  # type: ignore[assignment]  # The machine's own.
    with pytest.raises(ClientError, match=r"kvstore\[cuda\]"):
        world.map()
    world.engine = FakeDriver()


def test_the_context_is_made_before_the_tether(world: World) -> None:
    """See `cuda_mapping.py`: a dead process's work on the device is to end before its tether does."""
    order: list[str] = []
    opened, engine = world.engine.open, world.engine

    def open_(uuid: str):
        order.append(f"{len(world.tethers.ends)} tethers")
        return opened(uuid)

    engine.open = open_  # type: ignore[method-assign]
    pool = world.map()
    assert order == ["0 tethers"]
    pool.close()
    gc.collect(0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"frame_count": 1 << 20}, "are not"),
        ({"block_bytes": 5}, "were asked for"),
        ({"frame_count": 0}, "no frames"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(
    world: World, change: dict[str, int], problem: str
) -> None:
    handle = world.handle()
    for name, value in change.items():
        setattr(handle, name, value)
    with pytest.raises(ClientError, match=problem):
        world.map(handle)
    assert not world.engine[0].left_behind
