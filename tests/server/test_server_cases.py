"""Rows of group 5 about calls, maps and sizes (tests/CASES.md); the disk's are in test_disk_cases.py."""

import contextlib
import os
from pathlib import Path

from kvstore.client import calls as client_calls
from kvstore.server import calls as server_calls
from kvstore.server import service as service_module
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import BLOCK_TOKENS, Engine, Service, allocate, key, until


def memory_maps(pid: int) -> list[str]:
    """Of pools: where they stand and how long they are."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line.split()[0] for line in lines if "memfd:" in line]


def memory_files(pid: int) -> int:
    """Descriptors of pools. One may go under our eyes."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += "memfd:" in os.readlink(link)
    return count


def test_case_5_15_a_thousand_blocks_are_one_map_and_attaching_again_adds_none(service: Service) -> None:
    """One handle a pool: neither blocks nor engines that come and go take address space of their own."""
    assert service.process is not None
    pid = service.process.pid
    seen = []
    for _ in range(40):
        with service.stub() as stub:
            with Engine(stub) as engine:
                assert len(engine.attached.pools) == 1
                engine.step(allocate(1, 8 * BLOCK_TOKENS))
                assert memory_maps(pid)
            until(lambda: stub.GetUsage(pb.GetUsageRequest()).engines, lambda engines: not len(engines))
            seen.append((memory_maps(pid), memory_files(pid)))
    assert all(each == seen[0] for each in seen)


def test_case_5_19_a_request_beyond_grpcs_own_limit_of_four_megabytes_is_answered(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        request = pb.LookupRequest(engine=engine.name, block_keys=[key(number) for number in range(200_000)])
        assert request.ByteSize() > 6_000_000
        assert stub.Lookup(request).blocks_cached == 0


def test_case_5_19_both_sides_name_the_same_limit() -> None:
    client, server = dict(client_calls.OPTIONS), dict(service_module.OPTIONS)
    for options in (client, server):
        assert options["grpc.max_send_message_length"] == server_calls.MESSAGE_BYTES_MAX
        # What is larger is still read by the service, so that it can be refused in its own words.
        assert options["grpc.max_receive_message_length"] >= server_calls.MESSAGE_BYTES_MAX
