"""A client as a whole, against a fake service: what it asks, forks, what it leaves behind, its end."""

import os
import subprocess
import sys

import pytest

from kvstore.client import Client, ClientError, operations
from kvstore.v1 import kvstore_pb2 as pb
from tests.client.helpers import keep_alive_threads, layout, wait_until


def fd_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_lookup_and_usage(client, fake):
    assert client.lookup([bytes(32)] * 3, tenant="a").blocks_cached == 3
    request = pb.LookupRequest.FromString(fake.bytes_of("Lookup")[0])
    assert (request.engine, request.tenant) == (client.engine, "a")
    with Client(fake.address) as stranger:
        assert stranger.operator.usage().store_epoch == fake.epoch


# In a process of its own that has a client and no server: a gRPC server does not survive a fork beside it,
# and the fake would go down in our place.
FORKING = """
import os, select, sys, warnings
from kvstore.client import Client, ForkedChild, Layout

warnings.simplefilter("ignore", DeprecationWarning)  # Forking with threads is what this is about.
layout = Layout(block_tokens=16, block_bytes=5000, fingerprint=bytes(32))
with Client(sys.argv[1]) as client:
    client.attach(layout)
    pending = client.start_step([], completed_step=0)
    calls = [
        lambda: client.attach(layout),
        lambda: client.step([]),
        lambda: client.start_step([], completed_step=0),
        lambda: client.wait_events(1),
        lambda: client.lookup([]),
        client.operator.usage,
        client.detach,
        pending.result,
    ]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for call in calls:
            try:
                call()
            except ForkedChild:
                os.write(writer, b"F")
        client.close()
        os.write(writer, b"C")
        os._exit(0)
    os.close(writer)
    in_time = select.select([os.pidfd_open(child)], [], [], 30.0)[0] or os.kill(child, 9)
    print(os.waitpid(child, 0)[1], os.read(reader, 100).decode(), pending.result().step, client.step([]).step)
"""


def test_case_3_09_a_forked_child_is_told_so_and_never_hangs(fake):
    """And its parent is none the worse for it."""
    command = [sys.executable, "-c", FORKING, fake.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0 FFFFFFFFC 1 2\n", done.stderr


def test_nothing_leaks(fake):
    def live_once():
        with Client(fake.address) as client:
            client.attach(layout())
            client.step([operations.allocate(1, 16)])
        client = Client(fake.address)
        client.attach(layout())
        client.start_step([], completed_step=0)
        client.close()

    def settle():
        for tether in fake.tethers:
            tether.close()
        fake.tethers.clear()

    live_once()
    settle()
    before = fd_count()
    for _ in range(5):
        live_once()
    assert keep_alive_threads() == []
    settle()
    assert wait_until(lambda: fd_count() <= before)


def test_closed_twice_is_closed_and_used_after_is_an_error(client):
    client.close()
    client.close()
    with pytest.raises(ClientError, match="is closed"):
        client.step([])
    with pytest.raises(ClientError, match="is closed"):
        client.attach(layout())
