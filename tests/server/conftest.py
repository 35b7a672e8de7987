"""Services of their own for the tests of the server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import Service, until


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short: the path of a socket has 107 bytes at most."""
    return tmp_path_factory.mktemp("kv")


@pytest.fixture
def make_service(folder: Path) -> Iterator[Callable[..., Service]]:
    """Makes services in this test's folder; all are ended with the test, whatever became of it."""
    services: list[Service] = []

    def make(*flags: str, **sizes: int) -> Service:
        services.append(Service(folder, *flags, **sizes))
        return services[-1]

    yield make
    for service in services:
        service.end()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for the tests of a module that leave it as it was."""
    service = Service(tmp_path_factory.mktemp("kv")).start()
    yield service
    service.end()


@pytest.fixture
def lent(shared: Service) -> Iterator[Service]:
    """The shared one, for a test with engines of its own: they are gone before the next test has it."""
    yield shared
    with shared.stub() as stub:
        until(lambda: stub.GetUsage(pb.GetUsageRequest()), lambda usage: not usage.engines)


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    return make_service().start()
