"""The server from start to end: engine thread, HTTP, signals.

SIGTERM or Ctrl-C stops it: nothing new is taken, answers under way get their time to end, then the engine
leaves the service. A second signal does not wait for them. Tests: tests/engine/server/test_serving.py.
"""

import asyncio
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn

from engine.devices import open_device
from engine.engine import Engine
from engine.kv.in_process import InProcess
from engine.kv.set_ups import FULL, RESERVE_TOKENS_MAX, SetUp
from engine.kv.store_client import StoreClient
from engine.server.admission import Admission
from engine.server.app import make_app
from engine.server.bridge import Bridge
from engine.server.generation import Workshop
from engine.server.limits import Limits
from engine.server.loading import Loaded
from engine.server.metrics import Metrics
from engine.server.protocol import protocol_with
from engine.server.sessions import SessionTokens
from kvstore.client import Client, ServiceLost

__all__ = ["CannotListen", "Options", "Server"]

BACKLOG = 128
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class CannotListen(Exception):
    """The address is taken, or is none of this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    # As it is called in requests.
    model: str
    # The service's socket; empty: this user's default.
    kvstore: str = ""
    host: str = "127.0.0.1"
    # 0: any that is free.
    port: int = 8000
    # What requests have to bring; empty: none is asked for.
    api_key: str = ""
    set_up: SetUp = FULL
    # The process's own memory for KV, where the set-up has no service.
    kv_bytes: int = 0
    block_tokens: int = 16
    # What each request has room for, where that is reserved; 0: the model's context, up to a bound.
    reserve_tokens: int = 0
    # Sequences that are computed at once.
    running_max: int = 16
    # How long the service may be away when the server starts.
    attach_seconds: float = 60.0
    limits: Limits = field(default_factory=Limits)


class Server:
    """Made, started and served by one thread; `stop` may be called from any."""

    def __init__(self, options: Options, loaded: Loaded) -> None:
        self._options = options
        self._loaded = loaded
        limits = options.limits
        context_tokens = loaded.model.config.context_length
        self._reserve_tokens = min(options.reserve_tokens or RESERVE_TOKENS_MAX, context_tokens)
        self.bridge = Bridge(self._open_engine, on_end=self.stop)
        self.workshop = Workshop(
            bridge=self.bridge,
            words=loaded.words,
            sessions=SessionTokens(limits.session_tokens),
            metrics=Metrics(),
            limits=limits,
            context_tokens=self._reserve_tokens if options.set_up.is_contiguous else context_tokens,
        )
        self.admission = Admission(limits.answers_at_once)
        app = make_app(options.model, self.workshop, self.admission, api_key=options.api_key)
        self._http = _HttpServer(
            uvicorn.Config(
                app,
                http=protocol_with(limits),
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                # What clients do wrong is told to them, and fills nobody's log.
                log_level="error",
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=round(limits.stop_seconds),
            )
        )
        self._socket: socket.socket | None = None

    def start(self) -> str:
        """Listens and attaches; returns the URL. Raises CannotListen, or what the engine's start raises."""
        self._socket = _listen(self._options.host, self._options.port)
        try:
            self.bridge.start()
        except BaseException:
            self.stop()
            self.bridge.close()
            self._socket.close()
            raise
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def serve(self) -> bool:
        """Until it is stopped; false where the engine has failed."""
        if self._socket is None:
            raise ValueError("start() comes first")
        try:
            asyncio.run(self._http.serve(sockets=[self._socket]))
        finally:
            self._socket.close()
            self.bridge.close()
        return self.bridge.failure is None

    def stop(self) -> None:
        self._http.should_exit = True

    def _open_engine(self) -> Engine:
        """Tries until the service is there, for some time, or until the server is stopped."""
        options = self._options
        is_contiguous = options.set_up.is_contiguous
        deadline = time.monotonic() + options.attach_seconds
        while True:
            client: StoreClient = InProcess(options.kv_bytes)
            if options.set_up.has_service:
                client = Client(options.kvstore)
            device = open_device(self._loaded.device)
            try:
                engine = Engine(
                    self._loaded.model,
                    client,
                    set_up=options.set_up,
                    device=device,
                    # A request has one frame, and that all of its room.
                    block_tokens=self._reserve_tokens if is_contiguous else options.block_tokens,
                    running_max=options.running_max,
                    attach_seconds=0.0,
                    # The service answers while the model computes: nobody waits for it.
                    is_ahead=options.set_up.has_service,
                )
                # From now on requests end by their own time, and the server outlives its service.
                engine.attach_seconds = math.inf
                return engine
            except ServiceLost:
                client.close()
                if self._http.should_exit or time.monotonic() >= deadline:
                    raise


class _HttpServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would send itself the signal again at the end, and end by it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        remedy = "choose another port, or 0 for any that is free"
        raise CannotListen(f"--host {host} --port {port}: {reason}; remedy: {remedy}") from error
