"""The HTTP beside a real service: it listens where it should, and tells of its health."""

import asyncio
import signal
import socket
from pathlib import Path

import psutil
import pytest

from kvstore.core.errors import CheckFailed
from kvstore.server.driver import Driver
from kvstore.server.metrics_http import CONNECTIONS_MAX
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.driving import config_for
from tests.server.harness import DEADLINE_SECONDS, Engine, Service, allocate, until
from tests.server.scraping import get, port_of, scrape


def test_the_service_listens_on_loopback_alone(make_service) -> None:
    service: Service = make_service("--metrics", "localhost:0").start()
    assert service.process is not None
    listening = [
        each.laddr.ip
        for each in psutil.Process(service.process.pid).net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    ]
    assert listening == ["127.0.0.1"]


def test_without_the_flag_nothing_listens(service: Service) -> None:
    assert service.process is not None
    assert psutil.Process(service.process.pid).net_connections("inet") == []


def test_who_hangs_on_to_connections_holds_no_engine_up(make_service) -> None:
    service: Service = make_service("--metrics", "0").start()
    with service.stub() as stub, Engine(stub) as engine:
        idle = [socket.create_connection(("127.0.0.1", port_of(service))) for _ in range(CONNECTIONS_MAX)]
        for number in range(50):
            assert engine.step(allocate(1, 4 + number // 4)).step == number + 1
        for each in idle:
            each.close()
        until(lambda: get(port_of(service), "/metrics").status, lambda status: status == 200)
        assert scrape(service)["kvstore_steps_total"] == 50


def test_health_of_the_service(make_service) -> None:
    service: Service = make_service("--metrics", "0").start()
    port = port_of(service)
    answer = get(port, "/healthz")
    assert (answer.status, answer.text) == (200, "ok\nno engine has attached yet\n")
    with service.stub() as stub, Engine(stub):
        assert get(port, "/healthz").text == "ok\n"
        stub.Drain(pb.DrainRequest(), timeout=DEADLINE_SECONDS)
        answer = get(port, "/healthz")
        assert (answer.status, answer.text) == (503, "not serving\ndraining: no new work is taken\n")
        stub.Drain(pb.DrainRequest(cancel=True), timeout=DEADLINE_SECONDS)
        assert get(port, "/healthz").status == 200
    assert service.end(signal.SIGTERM) == 0
    with pytest.raises(ConnectionError):
        get(port, "/healthz")


def test_health_after_a_bug(folder: Path) -> None:
    async def main() -> None:
        driver = Driver(config_for(folder), None, lambda: None)
        assert driver.reports.health_page() == (True, "ok\nno engine has attached yet\n")

        class Failed:
            failure = CheckFailed("a frame was given back twice")

        driver._parts.running = Failed()  # type: ignore[assignment]
        assert driver.reports.health_page() == (False, "failed: a frame was given back twice\n")
        driver._parts.running = None
        await driver.close(1.0)

    asyncio.run(main())


def test_the_flag_is_refused_by_the_program(make_service, folder: Path) -> None:
    service: Service = make_service("--metrics", "0.0.0.0:9464")
    with pytest.raises(AssertionError):
        service.start()
    assert "kvstore: --metrics = 0.0.0.0:9464: only loopback is listened on" in service.log
    assert service.process is not None
    assert service.process.wait(DEADLINE_SECONDS) == 2
    service.process = None
