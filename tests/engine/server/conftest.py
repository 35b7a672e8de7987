"""A server with the tiny model over a real service, and the official client."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from openai import OpenAI

from engine.server.limits import Limits
from engine.server.loading import Loaded, load
from engine.server.options import Options
from engine.server.own_service import OwnService
from engine.server.serving import Server
from kvstore.demo.children import Service
from tests.engine.test_engine import serve

__all__ = ["Running", "running"]


class Running:
    """A server in a thread of its own."""

    def __init__(
        self, loaded: Loaded, service: Service | OwnService, limits: Limits, api_key: str = ""
    ) -> None:
        options = Options(model="tiny", kvstore=service.address, port=0, api_key=api_key, limits=limits)
        self.service = service
        self.server = Server(options, loaded)
        self.url = self.server.start()
        self._thread = threading.Thread(target=self._serve, name="server")
        self._thread.start()
        self.is_good = False

    def _serve(self) -> None:
        self.is_good = self.server.serve()

    def end(self) -> bool:
        self.server.stop()
        self._thread.join()
        return self.is_good

    def client(self, **options) -> Any:
        """Any: the client's types are for arguments that are spelled out, not for a dict of them."""
        return OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **options})


@contextmanager
def running(
    loaded: Loaded, service: Service | OwnService, limits: Limits | None = None, api_key: str = ""
) -> Iterator[Running]:
    server = Running(loaded, service, limits or Limits(stop_seconds=5.0), api_key)
    try:
        yield server
    finally:
        assert server.end()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The work is too small to be shared, and waiting for another core takes longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def loaded() -> Loaded:
    return load("tiny")


# Of the whole session: to start it costs more than most tests of it. Tests leave it as it was. Modules that
# have any use for it name it for all their tests, so that it is there before what they leave is looked at.
@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("kv"), gpu_frames=400, cpu_frames=400) as service:
        yield service


@pytest.fixture(scope="module")
def server(loaded: Loaded, service: Service) -> Iterator[Running]:
    with running(loaded, service) as server:
        yield server


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    with server.client() as client:
        yield client
