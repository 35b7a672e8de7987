"""A fake service and a client attached to it; and no test leaves anything of a client behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.client import Client
from tests.client.fake import FakeService
from tests.client.helpers import keep_alive_threads, layout, senders, wait_until


@pytest.fixture(autouse=True)
def nothing_of_the_client_is_left() -> Iterator[None]:
    """The fixture for all tests looks neither at daemon threads, as keep-alive is one, nor at mappings."""
    yield
    assert keep_alive_threads() == []
    assert wait_until(lambda: senders() == [])
    assert "memfd:kvstore-fake" not in Path("/proc/self/maps").read_text()


@pytest.fixture
def fake(tmp_path) -> Iterator[FakeService]:
    service = FakeService(tmp_path)
    yield service
    service.stop()


@pytest.fixture
def client(fake) -> Iterator[Client]:
    with Client(fake.address) as made:
        made.attach(layout())
        yield made
