"""Attach against a fake service: pools mapped by rank, tethers that fail, waiting for a pool, addresses."""

import select
import time

import grpc
import numpy as np
import pytest

from kvstore.client import Client, ClientError, Layout, Refused, ServiceLost, default_address, map_shared_rank
from kvstore.client.address import to_address
from kvstore.v1 import kvstore_pb2 as pb
from tests.client.fake import BLOCK_BYTES, FRAMES, STRIDE, FakeService
from tests.client.helpers import LOST_SECONDS, layout


def test_attach_maps_pools_that_both_sides_write_to(tmp_path):
    fake = FakeService(tmp_path, ranks=2)
    with Client(fake.address) as client:
        client.attach(layout(ranks=2), build="test 1")
        assert client.engine.startswith("engines/")
        assert (client.store_epoch, client.frame_count, client.next_step) == (fake.epoch, FRAMES, 1)
        assert [pool.rank for pool in client.pools] == [0, 1]
        for rank, pool in enumerate(client.pools):
            assert (pool.frames.shape, pool.block_bytes) == ((FRAMES, STRIDE), BLOCK_BYTES)
            pool.frames[FRAMES - 1, :4] = [rank, 2, 3, 4]
            assert fake.frames(rank)[FRAMES - 1, :4].tolist() == [rank, 2, 3, 4]
        request = pb.AttachRequest.FromString(fake.bytes_of("Attach")[0])
        assert (request.build, request.lease.ToSeconds(), request.layout.ranks) == ("test 1", 10, 2)
    assert fake.count("Detach") == 1
    fake.stop()


def test_only_the_ranks_asked_for_are_mapped(tmp_path):
    fake = FakeService(tmp_path, ranks=3)
    with Client(fake.address) as client:
        client.attach(layout(ranks=3), map_ranks=[2])
        assert [pool.rank for pool in client.pools] == [2]
        assert (len(fake.tethers), client.frame_count) == (1, FRAMES)
    with Client(fake.address) as client:
        client.attach(layout(ranks=3), map_ranks=[])
        assert client.pools == []
        assert client.step([]).step == 1
    with Client(fake.address) as client, pytest.raises(ClientError, match="there is no rank 3"):
        # This service has fewer than the layout.
        client.attach(layout(ranks=4), map_ranks=[0, 3])
    fake.stop()


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([0, 0], r"map_ranks \[0, 0\]: rank 0 is named twice; name each rank once"),
        ([0, 3], r"map_ranks \[0, 3\]: there is no rank 3; name ranks from 0 to 2"),
        ([-1], r"map_ranks \[-1\]: there is no rank -1; name ranks from 0 to 2"),
    ],
)
def test_ranks_that_can_not_be_mapped_are_told_before_anything_is_asked(tmp_path, ranks, message):
    fake = FakeService(tmp_path, ranks=3)
    with Client(fake.address) as client, pytest.raises(ClientError, match=message):
        client.attach(layout(ranks=3), map_ranks=ranks)
    assert fake.count("Attach") == 0
    fake.stop()


def test_a_rank_that_is_not_mapped_here_can_be_shared_once(tmp_path):
    fake = FakeService(tmp_path, ranks=2)
    with Client(fake.address) as client:
        client.attach(layout(ranks=2), map_ranks=[0])
        for rank in (0, 2, -1):
            with pytest.raises(ClientError, match=f"rank {rank} can't be shared: of 2 ranks, .0. are mapped"):
                client.share_rank(rank)
        shared = client.share_rank(1)
        pool = map_shared_rank(shared)
        assert (pool.rank, pool.block_bytes, pool.frames.shape) == (1, BLOCK_BYTES, (FRAMES, STRIDE))
        pool.frames[3, :2] = [7, 8]
        assert fake.frames(1)[3, :2].tolist() == [7, 8]
        with pytest.raises(ServiceLost, match="no pool of rank 1"):
            map_shared_rank(shared)
        for other in (b"", b"garbage", b"\xff" * 40):
            with pytest.raises(ClientError, match=r"not what Client\.share_rank gave"):
                map_shared_rank(other)
        assert len(fake.tethers) == 2
        pool.close()
    fake.stop()


def test_a_tether_that_is_closed_to_make_room_is_tried_again(fake):
    fake.tethers_dropped = 3
    with Client(fake.address) as client:
        client.attach(layout())
        assert (len(fake.tethers), fake.tethers_dropped) == (1, 0)


def test_a_tether_that_is_closed_always_is_given_up_at_the_deadline(fake):
    fake.tethers_dropped = 10**9
    begin = time.monotonic()
    with Client(fake.address, deadline_seconds=0.5) as client, pytest.raises(ServiceLost, match="no pool of"):
        client.attach(layout())
    assert 0.3 < time.monotonic() - begin < 5.0


def test_a_secret_that_is_spent_is_not_tried_for_long(fake):
    fake.secrets_lost = 1
    begin = time.monotonic()
    with Client(fake.address) as client, pytest.raises(ServiceLost, match="spent already"):
        client.attach(layout())
    assert time.monotonic() - begin < 2.0


def test_sizes_that_contradict_the_file_are_refused_and_the_engine_given_up(fake):
    fake.size_lie = 1
    with (
        Client(fake.address) as client,
        pytest.raises(ClientError, match="has 262144 bytes instead of 270336"),
    ):
        client.attach(layout())
    assert fake.count("Detach") == 1
    other = Layout(block_tokens=16, block_bytes=BLOCK_BYTES + 1, fingerprint=bytes(32))
    with Client(fake.address) as client, pytest.raises(ClientError, match="blocks have 5000 bytes, and 5001"):
        client.attach(other)


def test_attach_waits_for_a_pool_under_the_same_request(fake):
    fake.refusals["Attach"] = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "POOL_UNAVAILABLE")] * 2
    with Client(fake.address) as client:
        client.attach(layout())
        assert fake.count("Attach") == 3
        assert len(set(fake.bytes_of("Attach"))) == 1
        with pytest.raises(ClientError, match="attached already"):
            client.attach(layout())
    fake.refusals["Attach"] = [(grpc.StatusCode.FAILED_PRECONDITION, "LAYOUT_MISMATCH")]
    with Client(fake.address) as client:
        with pytest.raises(Refused, match="LAYOUT_MISMATCH"):
            client.attach(layout())
        with pytest.raises(ClientError, match="not attached"):
            client.step([])


def test_attach_to_nobody_fails_within_the_deadline(tmp_path):
    with Client(f"unix:{tmp_path / 'nobody.sock'}", deadline_seconds=0.3) as client:
        begin = time.monotonic()
        with pytest.raises(ServiceLost, match="UNAVAILABLE"):
            client.attach(layout())
        assert time.monotonic() - begin < LOST_SECONDS


def test_a_tether_ends_with_the_last_array_not_before(client, fake):
    frames = client.pools[0].frames
    view = frames[5:9]
    tether = fake.tethers[0]
    client.close()
    del frames
    assert select.select([tether], [], [], 0)[0] == []
    assert np.all(view == 0)
    del view
    tether.settimeout(LOST_SECONDS)
    assert tether.recv(1) == b""


@pytest.mark.parametrize(
    "address", ["unix:", "unix://", "unix://rel/x", "localhost:50051", "dns:///service", "http://service/"]
)
def test_what_is_no_unix_socket_is_refused(address):
    with pytest.raises(ClientError, match="no Unix socket"):
        Client(address)


@pytest.mark.parametrize("address", ["/run/a%41.sock", "unix:/run/a?b", "/run/a,b", "/run/\udcff.sock"])
def test_what_grpc_would_take_for_another_address_is_refused(address):
    with pytest.raises(ClientError, match="cannot be a socket's address"):
        Client(address)


def test_an_address_too_long_for_the_system_is_refused():
    with pytest.raises(ClientError, match="at most 107 bytes"):
        Client("/" + "x" * 107)
    assert to_address("/" + "x" * 106) == "unix:/" + "x" * 106


def test_addresses_are_told_to_grpc_as_absolute_or_relative_paths():
    for text in ("/run/k", "//run/k", "unix:/run/k", "unix:///run/k", "unix:////run/k"):
        assert to_address(text) == "unix:/run/k"
    assert to_address("unix:k") == to_address("k") == "unix:k"


def test_deadlines_are_checked():
    with pytest.raises(ValueError, match="deadline_seconds must be above 0, not 0"):
        Client("unix:/nowhere", deadline_seconds=0)


def test_the_default_address_is_this_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_address() == f"unix:{tmp_path}/kvstore/kvstore.sock"
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        monkeypatch.setattr("os.getuid", lambda: 987654)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        assert default_address() == f"unix:{tmp_path}/kvstore-987654/kvstore.sock"
