"""Which GPUs are meant, and what is refused, in words."""

from pathlib import Path

import pytest

from kvstore.core.errors import ConfigInvalid, FieldInvalid
from kvstore.cuda.driver import CudaUnavailable
from kvstore.server.config import ServeConfig, parse_config
from kvstore.server.gpus import check_gpu_memory, find_gpus, open_gpus
from kvstore.server.layout import Layout
from kvstore.server.pools import count_frames
from tests.cuda.fake import GRANULARITY, FakeDriver, fake_uuid

GIB = 1 << 30


def load(devices: int) -> FakeDriver:
    return FakeDriver(devices=devices, memory_bytes=16 * GIB, stepped=True)


def test_devices_are_found_by_name_in_the_order_that_was_asked() -> None:
    wanted = [fake_uuid(2), fake_uuid(0)]
    assert [device.uuid for device in find_gpus(wanted, lambda: load(3))] == wanted
    assert [device.uuid for device in find_gpus(["cuda"], lambda: load(1))] == [fake_uuid(0)]


def test_where_none_is_wanted_no_driver_is_looked_for() -> None:
    def never() -> FakeDriver:
        raise AssertionError

    assert find_gpus((), never) == ()
    assert open_gpus((), None) is None


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (["cuda"], "there are 2 devices"),
        (["GPU-1234"], "no such device"),
        ([fake_uuid(0), fake_uuid(0)], "named twice"),
        ([fake_uuid(1), "GPU-"], "no such device"),
    ],
)
def test_what_names_no_device_is_refused_with_those_there_are(wanted: list[str], problem: str) -> None:
    with pytest.raises(ConfigInvalid, match=problem) as caught:
        find_gpus(wanted, lambda: load(2))
    assert caught.value.field == "--gpu-device"
    assert all(fake_uuid(index) in caught.value.remedy for index in range(2))


def test_without_a_driver_or_a_device_it_is_said_how_to_go_on() -> None:
    def missing() -> FakeDriver:
        raise CudaUnavailable("no CUDA driver (libcuda.so.1) on this machine")

    for driver in (missing, lambda: load(0)):
        with pytest.raises(ConfigInvalid, match="leave --gpu-device out"):
            find_gpus(["cuda"], driver)


def test_a_share_is_one_of_the_gpus_memory_and_the_hosts_is_left_to_the_cpu_tier() -> None:
    devices = find_gpus([fake_uuid(0), fake_uuid(1)], lambda: load(2))
    given = {"socket": "/run/x.sock", "memory_bytes": 4 * GIB}
    config = parse_config(gpu="25%", cpu="3GiB", gpu_devices=devices, **given)  # type: ignore[arg-type]
    assert config.gpu_bytes == 8 * GIB
    assert config.gpu_devices == (fake_uuid(0), fake_uuid(1))
    with pytest.raises(ConfigInvalid, match="--cpu"):
        parse_config(gpu="25%", cpu="5GiB", gpu_devices=devices, **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalid, match=r"--gpu.*16 GiB"):
        parse_config(gpu="33GiB", cpu="1GiB", gpu_devices=devices, **given)  # type: ignore[arg-type]
    # Without a GPU both are the host's.
    with pytest.raises(ConfigInvalid, match="--gpu and --cpu"):
        parse_config(gpu="2GiB", cpu="3GiB", **given)  # type: ignore[arg-type]


def test_what_would_fit_is_told_for_all_devices_together() -> None:
    devices = find_gpus([fake_uuid(0), fake_uuid(1)], lambda: load(2))
    check_gpu_memory(32 * GIB, devices)
    with pytest.raises(ConfigInvalid) as caught:
        check_gpu_memory(32 * GIB + 2, devices)
    assert str(32 * GIB) in caught.value.remedy


def test_the_bytes_asked_for_are_a_bound_that_rounding_keeps() -> None:
    driver = load(2)
    gpus = open_gpus([fake_uuid(0), fake_uuid(1)], driver)
    assert gpus is not None
    assert gpus.granularity_bytes == GRANULARITY
    assert gpus.rank_bytes(2 * GRANULARITY) == GRANULARITY
    assert gpus.rank_bytes(4 * GRANULARITY - 1) == GRANULARITY
    gpus.check_ranks(2)
    for ranks in (1, 3):
        with pytest.raises(FieldInvalid, match=fake_uuid(1)):
            gpus.check_ranks(ranks)
    gpus.close(5.0)
    assert not driver[0].left_behind


def test_a_tier_smaller_than_a_gpus_pages_is_refused_with_their_size() -> None:
    gpus = open_gpus([fake_uuid(0), fake_uuid(1)], load(2))
    assert gpus is not None
    layout = Layout(block_tokens=4, block_bytes=4096, ranks=2, fingerprint=b"f" * 32)
    config = ServeConfig(socket=Path("/nowhere/k.sock"), gpu_bytes=2 * GRANULARITY - 1)
    with pytest.raises(FieldInvalid, match=f"multiples of {GRANULARITY} on each GPU") as caught:
        count_frames(config, layout, None, gpus)
    assert "--gpu" in caught.value.remedy
    larger = ServeConfig(socket=Path("/nowhere/k.sock"), gpu_bytes=2 * GRANULARITY)
    assert count_frames(larger, layout, None, gpus).gpu == GRANULARITY // 4096
    gpus.close(5.0)


def test_a_gpu_that_does_not_open_is_named_and_the_others_are_given_back() -> None:
    driver = load(2)
    driver[1].fail("make_stream", code="CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(ConfigInvalid, match=r"can't be opened.*OUT_OF_MEMORY") as caught:
        open_gpus([fake_uuid(0), fake_uuid(1)], driver)
    assert caught.value.field == "--gpu-device"
    assert not driver[0].left_behind
    assert not driver[1].left_behind
