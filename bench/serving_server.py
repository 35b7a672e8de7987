"""The engine's server in one of its set-ups, in a process of its own, and what can be read of it.

A set-up is where KV is kept (engine/kv/set_ups.py): `contiguous` reserves each request's longest in one
piece, `paged` gives blocks as they are needed, `shared` finds prefixes again (by a kvstore service with no
more than the "GPU" tier), `tiered` has CPU and disk below that, and `full` pushes requests out for room too.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench.report import ROOT
from engine.kv.set_ups import SET_UPS
from kvstore.client import Client
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["OWN_SERVICE", "SETUPS", "Server", "SetUp", "read_figures", "server", "server_process"]

SETUPS = tuple(SET_UPS)
# Those that a kvstore service stands behind.
OWN_SERVICE = tuple(name for name, each in SET_UPS.items() if each.has_service)
NAMES = "kvstore_engine_"
END_SECONDS = 40.0
SECONDS_MAX = 30.0
COUNT_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    name: str
    model: str
    memory_bytes: int
    # Contiguous alone: a request's longest.
    reserve_tokens: int = 2048
    block_tokens: int = 16
    running_max: int = 64
    cpu_bytes: int = 1 << 30
    disk_bytes: int = 2 << 30

    def flags(self, folder: Path) -> list[str]:
        """Of `kvstore-engine serve`. `folder`: the service's, where there is one."""
        flags = ["--model", self.model, "--port", "0", "--kv", self.name]
        flags += ["--kv-memory", str(self.memory_bytes), "--running-max", str(self.running_max)]
        flags += ["--block-tokens", str(self.block_tokens), "--answers-at-once", "256"]
        if self.name == "contiguous":
            flags += ["--reserve-tokens", str(self.reserve_tokens)]
        if self.name in OWN_SERVICE:
            flags += ["--own-service", "--folder", str(folder)]
        if self.name in ("tiered", "full"):
            flags += ["--cpu", str(self.cpu_bytes), "--disk-bytes", str(self.disk_bytes)]
        return flags


class Server:
    """One that answers."""

    def __init__(self, setup: SetUp, url: str, address: str, process: int) -> None:
        """`address`: the kvstore service's; empty where there is none. `process`: the engine's."""
        self.setup, self.url, self.address = setup, url, address
        self._process = psutil.Process(process)
        # A new connection each time: the server may just be closing an idle one.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=url, timeout=SECONDS_MAX, limits=limits, trust_env=False)
        # To connect, and to leave, takes threads here and in the service: once for all.
        self._service = Client(address) if address else None

    @property
    def model(self) -> str:
        return self.setup.model

    def close(self) -> None:
        """It is asked for no figures any more."""
        self._client.close()
        if self._service is not None:
            self._service.close()

    def figures(self) -> dict[str, float]:
        """What `/metrics` has, by name without `kvstore_engine_`; of several labels, the sum."""
        response = self._client.get("/metrics")
        return read_figures(response.raise_for_status().text)

    def figures_at_rest(self) -> dict[str, float]:
        """When all that was asked has been done, and counted."""
        end = time.monotonic() + SECONDS_MAX
        while True:
            # Of short work it counts, and shows, the last a little later.
            time.sleep(COUNT_SECONDS)
            figures = self.figures()
            if not figures["requests_running"] and not figures["requests_waiting"]:
                return figures
            if time.monotonic() > end:
                raise SystemExit(f"{self.setup.name}: requests hold memory, and all were answered: {figures}")

    def cpu_seconds(self) -> float:
        """Of the processor, what engine and service have taken so far."""
        processes = [self._process, *self._process.children(recursive=True)]
        return sum(sum(each.cpu_times()[:2]) for each in processes)

    def usage(self) -> pb.Usage:
        """Of the kvstore service; empty where there is none."""
        return pb.Usage() if self._service is None else self._service.operator.usage()

    def advice(self) -> list[str]:
        """What `kvstore status` advises."""
        command = [sys.executable, "-m", "kvstore", "status", "--json", "--socket", self.address]
        told = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
        return [each["text"] for each in json.loads(told)["advice"]]

    def bytes_swapped(self) -> int:
        """Moved between tiers so far, in either direction."""
        return sum(link.bytes_moved for link in self.usage().links)


def read_figures(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix(NAMES)
            found[name] = found.get(name, 0.0) + sample.value
    return found


@contextmanager
def server(setup: SetUp, folder: Path | None = None) -> Iterator[Server]:
    """Started, and ended at the end. `folder`: of its kvstore service, to be kept; else one that goes."""
    # Short, because the path of a socket may not be long.
    with tempfile.TemporaryDirectory(prefix="kvbench-", ignore_cleanup_errors=True) as made:
        place = folder or Path(made)
        address = f"unix:{place / 'kvstore.sock'}" if setup.name in OWN_SERVICE else ""
        with (
            server_process(setup.flags(place), Path(made) / "server.log") as (process, url),
            closing(Server(setup, url, address, process.pid)) as running,
        ):
            yield running


@contextmanager
def server_process(flags: Sequence[str], log: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`kvstore-engine serve` with its URL, when it answers; ended at the end, unless it has. `log`: where
    what it says on stderr goes."""
    command = [sys.executable, "-m", "engine.server.command", "serve", *flags]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield process, _url(process, log)
    finally:
        _end(process)


def _url(process: "subprocess.Popen[str]", log: Path) -> str:
    for line in process.stdout or ():
        if line.startswith("Serving "):
            return next(word for word in line.split() if word.startswith("http")).removesuffix("/v1")
    process.wait()
    raise SystemExit(f"kvstore-engine has not started:\n{log.read_text(errors='replace')}")


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
