"""Sixty-four clients, many of whom disconnect, are late, or ask for what can't be; and a service that dies.

Afterwards no frame is in use and no error was logged, and all who stayed have the answers of the plain run.
The same for longer: `python -m bench.serving_storm`.
"""

import asyncio
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bench.storm.catalogue import Ask, Talk, draw_asks, draw_talks
from bench.storm.plainly import check_ask, check_talk
from bench.storm.storm import ask_quietly, calm, storm
from bench.storm.visitors import WAYS, Findings, Setting
from engine.server.limits import Limits
from engine.server.loading import Loaded
from kvstore.client import Client
from kvstore.demo.children import Service
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.late_engine import HearingClient, LateGpu
from tests.engine.server.conftest import Running, running
from tests.engine.test_engine import FRAME_BYTES

SEED = 20
VISITORS = 64
GPU_FRAMES = 100
LIMITS = Limits(answers_at_once=48, body_bytes=200_000, stop_seconds=5.0)


@dataclass
class Shore:
    """The service, which may die and come back, and the server over it."""

    folder: Path
    service: Service
    server: Running
    asks: list[Ask]
    talks: list[Talk]

    def usage(self) -> pb.Usage:
        with Client(self.service.address) as client:
            return client.operator.usage()

    def kill(self) -> None:
        self.service.end(signal.SIGKILL)
        self.service = start(self.folder)

    def setting(self) -> Setting:
        return Setting(
            url=self.server.url,
            model="tiny",
            asks=self.asks,
            talks=self.talks,
            characters_beyond_memory=GPU_FRAMES * 16 + 1,
            characters_beyond_context=5000,
            body_bytes=LIMITS.body_bytes,
        )


def start(folder: Path) -> Service:
    gpu, cpu, disk = (frames * FRAME_BYTES for frames in (GPU_FRAMES, 80, 600))
    service = Service("service", folder, gpu_bytes=gpu, cpu_bytes=cpu, disk_bytes=disk)
    service.until_answered()
    return service


@pytest.fixture(scope="module")
def shore(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shore]:
    folder = tmp_path_factory.mktemp("storm")
    draw = random.Random(SEED)
    asks, talks = draw_asks(draw, 16, "tiny", 120), draw_talks(draw, 2, "tiny", 30)
    service = start(folder)
    try:
        with running(loaded, service, LIMITS) as server:
            shore = Shore(folder, service, server, asks, talks)
            asyncio.run(ask_quietly(server.url, asks, talks))
            yield shore
    finally:
        shore.service.end()


def test_what_a_quiet_server_answers_is_what_the_plain_run_does(shore, loaded):
    asked = [ask for ask in shore.asks if not ask.is_search]
    assert len(asked) < len(shore.asks)
    assert [fault for ask in asked if (fault := check_ask(loaded, ask))] == []
    faults = [check_talk(loaded, talk, f"quiet {number}") for number, talk in enumerate(shore.talks)]
    assert faults == [""] * len(shore.talks)
    assert {finish for ask in shore.asks if ask.right for finish in ask.right.finishes} == {"length", "stop"}


def test_on_a_gpu_each_step_is_sent_while_the_one_before_runs(shore, loaded, monkeypatch):
    """A device in host memory whose work runs late; its answers are those of the other one."""
    device = LateGpu(SEED)
    client = HearingClient(shore.service.address, device)
    monkeypatch.setattr("engine.server.serving.open_device", lambda name: device)
    monkeypatch.setattr("engine.server.serving.Client", lambda address: client)
    findings = Findings()
    with running(loaded, shore.service, LIMITS) as server:
        setting = replace(shore.setting(), url=server.url)
        asyncio.run(storm(setting, SEED + 2, findings, visitors=16, visits_each=2))
        calm(findings, shore.usage, lambda: server.server.admission.answers)
    assert findings.faults == []
    assert findings.counts["answered"] > 0
    assert client.beside_work > 20
    assert client.ahead == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_after_a_storm_nothing_is_left_and_who_stayed_was_answered_rightly(shore, caplog, is_killed):
    findings = Findings()
    asyncio.run(
        storm(
            shore.setting(),
            SEED + is_killed,
            findings,
            visitors=VISITORS,
            visits_each=1 if is_killed else 2,
            kill=shore.kill if is_killed else None,
            kills_max=1,
            kills_seconds=(0.1, 0.4),
        )
    )
    usage = calm(findings, shore.usage, lambda: shore.server.server.admission.answers)
    assert findings.faults == []
    assert not shore.server.server.bridge._places
    told = (shore.folder / "service.log").read_text()
    assert "ERROR" not in told
    assert "Traceback" not in told
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
    # All has happened that was to be borne.
    assert findings.counts["answered"] > VISITORS / 2
    if is_killed:
        assert findings.counts["kills"] > 0
    else:
        assert all(findings.counts[way] for way in WAYS)
        assert usage.sequences.swaps_out > 0
