"""Where the HTTP beside the service listens: on loopback alone."""

import asyncio
import socket

import pytest

from kvstore.core.errors import ConfigInvalid
from kvstore.server.metrics_http import MetricsServer, parse_metrics_address
from tests.server.http_asking import asked


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0", ("127.0.0.1", 0)),
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("127.8.9.1:1", ("127.8.9.1", 1)),
        ("localhost:65535", ("127.0.0.1", 65_535)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_loopback_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_metrics_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0:9464",
        "[::]:9464",
        ":9464",
        "*:9464",
        "192.168.1.7:9464",
        "example.com:80",
        "[::ffff:1.2.3.4]:1",
    ],
)
def test_8_09_other_interfaces_are_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"--metrics = .*loopback.*127\.0\.0\.1:PORT"):
        parse_metrics_address(text)


@pytest.mark.parametrize("text", ["", "65536", "-1", "nine", "127.0.0.1:", "127.0.0.1:+80", "1e3", "٣"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid, match="no port"):
        parse_metrics_address(text)


def test_a_port_that_is_taken_is_refused() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(ConfigInvalid, match=rf"--metrics = 127\.0\.0\.1:{port}.*another port"):
                await MetricsServer(asked(bytes), lambda: (True, "")).start("127.0.0.1", port)

    asyncio.run(main())
