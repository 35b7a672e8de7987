"""The service from start to end: all is checked and taken before the socket answers, and given back in
the opposite order.

A start that can't succeed raises a `KVStoreError` and leaves nothing behind. Exit status 0: asked to
stop. 1: the store has met a bug, and what is safe was written to disk.
"""

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path

import grpc.aio

from kvstore.core.errors import CheckFailed, ConfigInvalid
from kvstore.cuda.driver import Driver as CudaDriver
from kvstore.observe.folder import JournalFolder
from kvstore.server.calls import Streams
from kvstore.server.config import ServeConfig
from kvstore.server.driver import Driver
from kvstore.server.gpus import Gpus, open_gpus
from kvstore.server.metrics import Exposition
from kvstore.server.metrics_http import MetricsServer
from kvstore.server.metrics_reading import Seen
from kvstore.server.service import make_server
from kvstore.server.sizes import format_bytes
from kvstore.server.sockets import claimed, file_identity, private_files, remove, tether_path
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.disk_dump import check_index

__all__ = ["serve", "stop_seconds_max"]

# What a stop may take: calls that are being answered, transfers that run, threads in a call.
CALLS_SECONDS = 1.0
TRANSFERS_SECONDS = 10.0
MOVERS_SECONDS = 5.0
GPUS_SECONDS = 2.0
# All of it, and pools whose driver hangs; what takes longer never ends.
STOP_SECONDS = 60.0

log = logging.getLogger(__name__)


def stop_seconds_max(config: ServeConfig) -> float:
    return STOP_SECONDS + config.drain_seconds


async def serve(
    config: ServeConfig, cuda: CudaDriver | None = None, stopping: Callable[[], None] = lambda: None
) -> int:
    """Runs until SIGTERM, SIGINT or a bug; returns the exit status. `cuda`: this machine's driver by default,
    looked for only where devices were asked for. `stopping`: called when it begins to stop."""
    stop = _Stop(stopping)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # They stay to the end: a second signal must not cut it short, which has bounds of its own.
        loop.add_signal_handler(number, stop.set)
    if config.journal_path is None:
        return await _serve_on_gpus(config, stop, None, cuda)
    with JournalFolder.claim(config.journal_path, config.journal_bytes) as journal:
        return await _serve_on_gpus(config, stop, journal, cuda)


class _Stop(asyncio.Event):
    def __init__(self, stopping: Callable[[], None]) -> None:
        super().__init__()
        self._stopping = stopping

    def set(self) -> None:
        super().set()
        self._stopping()


async def _serve_on_gpus(
    config: ServeConfig, stop: asyncio.Event, journal: JournalFolder | None, cuda: CudaDriver | None
) -> int:
    gpus = await asyncio.to_thread(open_gpus, config.gpu_devices, cuda)
    try:
        return await _serve(config, stop, journal, gpus)
    finally:
        if gpus is not None:
            await asyncio.to_thread(gpus.close, GPUS_SECONDS)


async def _serve(
    config: ServeConfig, stop: asyncio.Event, journal: JournalFolder | None, gpus: Gpus | None
) -> int:
    disk = None
    if config.disk_path is not None:
        wipe = config.wipe_incompatible
        check_index(config.disk_path)
        disk = DiskTier.open(config.disk_path, config.disk_bytes, wipe_incompatible=wipe)
    driver = Driver(config, disk, stop.set, journal, gpus)
    try:
        await _serve_sockets(config, driver, stop)
    finally:
        ended = await driver.close(MOVERS_SECONDS)
        if disk is not None and ended:
            disk.close()
    return 0 if driver.failure is None else 1


async def _serve_sockets(config: ServeConfig, driver: Driver, stop: asyncio.Event) -> None:
    streams = Streams()
    metrics = _metrics_server(driver, stop)
    server = make_server(driver, tether_path(config.socket), streams)
    bound: dict[Path, tuple[int, int]] = {}
    try:
        with claimed(config.socket), private_files():
            _bind(server, config.socket)
            bound[config.socket] = file_identity(config.socket)
            driver.tethers.start(tether_path(config.socket))
            bound[tether_path(config.socket)] = file_identity(tether_path(config.socket))
        await server.start()
        if config.metrics is not None:
            log.info("metrics on %s/metrics", await metrics.start(*config.metrics))
        log.info("kvstore ready on unix:%s %s", config.socket, _sizes(config))
        if 0 < config.cpu_bytes < config.gpu_bytes:
            log.warning("--cpu is less than --gpu: nearly all that it keeps is on the GPU as well")
        await stop.wait()
        log.info("stopping")
        driver.health.begin_stop()
        if config.drain_seconds and driver.failure is None:
            await _drain(driver, config.drain_seconds)
        driver.end_waits()
        streams.close()
        await server.stop(CALLS_SECONDS)
        await driver.end_transfers(TRANSFERS_SECONDS)
    finally:
        await metrics.close()
        await server.stop(None)
        for path, identity in bound.items():
            remove(path, identity)


def _metrics_server(driver: Driver, stop: asyncio.Event) -> MetricsServer:
    def look() -> Seen:
        return Seen(driver.reports.usage_message(), driver.counts)

    def health() -> tuple[bool, str]:
        return (False, "stopping\n") if stop.is_set() else driver.reports.health_page()

    exposition = Exposition(look)

    async def text() -> bytes:
        await driver.reports.look()
        return exposition.text()

    return MetricsServer(text, health)


async def _drain(driver: Driver, seconds: float) -> None:
    """Engines go on meanwhile with what they have begun."""
    try:
        written, left = await driver.drain_to_disk(seconds)
    except CheckFailed:
        return  # The store has met a bug and has said so.
    log.info("drained: %d blocks written, %d left", written, left)


def _bind(server: grpc.aio.Server, path: Path) -> None:
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        remedy = "choose another socket"
        raise ConfigInvalid(f"can't listen: {error}", field="--socket", value=path, remedy=remedy) from error


def _sizes(config: ServeConfig) -> str:
    sizes = [f"gpu {format_bytes(config.gpu_bytes)}", f"cpu {format_bytes(config.cpu_bytes)}"]
    if config.gpu_devices:
        sizes[0] += f" on {', '.join(config.gpu_devices)}"
    if config.disk_path is not None:
        sizes.append(f"disk {format_bytes(config.disk_bytes)} in {config.disk_path}")
    return " ".join(sizes)
