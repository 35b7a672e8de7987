"""The server from start to end: engine thread, HTTP, signals.

SIGTERM or Ctrl-C stops it: nothing new is taken, answers under way get their time to end, those that have not
are told an error, then the engine leaves the service. A second signal does not wait for answers, a third for
nobody. Tests: tests/engine/server/test_serving.py, test_stopping.py.
"""

import asyncio
import logging
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn

from engine.devices import open_device
from engine.engine import Engine
from engine.kv.in_process import InProcess
from engine.kv.store_client import StoreClient
from engine.server.admission import Admission
from engine.server.app import make_app
from engine.server.bridge import Bridge
from engine.server.generation import Workshop
from engine.server.listening import bind, listen
from engine.server.loading import Loaded
from engine.server.metrics import Metrics
from engine.server.options import Options
from engine.server.protocol import protocol_with
from engine.server.sessions import SessionTokens
from kvstore.client import Client, ServiceLost

__all__ = ["Server"]

ATTACH_PAUSE_SECONDS = 0.1
# For clients to take what they are told at the end.
TELL_SECONDS = 2.0
# Above all that a stop waits for: uvicorn then ends what is left by force.
LAST_SECONDS = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger(__name__)


class Server:
    """Made, started and served by one thread; `stop` may be called from any."""

    def __init__(self, options: Options, loaded: Loaded) -> None:
        self._options = options
        self._loaded = loaded
        limits = options.limits
        context_tokens = loaded.model.config.context_length
        self._frame_tokens = options.frame_tokens(context_tokens)
        self.bridge = Bridge(self._open_engine, on_end=self.stop)
        self.workshop = Workshop(
            bridge=self.bridge,
            words=loaded.words,
            sessions=SessionTokens(limits.session_tokens),
            metrics=Metrics(),
            limits=limits,
            context_tokens=options.request_tokens_max(context_tokens),
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
                timeout_graceful_shutdown=math.ceil(limits.stop_seconds + TELL_SECONDS + LAST_SECONDS),
            ),
            limits.stop_seconds,
            self.bridge.end_answers,
        )
        self._socket: socket.socket | None = None

    def start(self, bound: socket.socket | None = None) -> str:
        """Listens and attaches; returns the URL. `bound`: the address, where it was taken before.

        Raises CannotListen, or what the engine's start raises.
        """
        options = self._options
        self._socket = bound or bind(options.host, options.port)
        listen(self._socket, options.host, options.port)
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

    def give_up(self) -> None:
        """Its service does not come back: who waits is told, and then it stops."""
        self.bridge.ask_end()

    def _open_engine(self) -> Engine:
        """Tries until the service is there, for some time, or until the server is stopped."""
        options = self._options
        deadline = time.monotonic() + options.attach_seconds
        is_told = False
        while True:
            device = open_device(self._loaded.device)
            client: StoreClient = InProcess(options.kv_bytes, device.make_pool)
            if options.set_up.has_service:
                client = Client(options.kvstore)
            try:
                # Fails at once where nobody is there; an attach would try for seconds, and say nothing.
                client.check_service()
                engine = Engine(
                    self._loaded.model,
                    client,
                    set_up=options.set_up,
                    device=device,
                    block_tokens=self._frame_tokens,
                    running_max=options.running_max,
                    attach_seconds=0.0,
                    # The service answers while the model computes: nobody waits for it.
                    is_ahead=options.set_up.has_service,
                )
                # From now on requests end by their own time, and the server outlives its service.
                engine.attach_seconds = math.inf
                return engine
            except ServiceLost as error:
                client.close()
                if self._http.should_exit or time.monotonic() >= deadline:
                    raise
                if not is_told:
                    log.warning(
                        "waiting for the service, up to %g seconds: %s", options.attach_seconds, error
                    )
                    is_told = True
                time.sleep(ATTACH_PAUSE_SECONDS)


class _HttpServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, stop_seconds: float, end_answers: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop_seconds = stop_seconds
        self._end_answers = end_answers
        self._is_hurried = asyncio.Event()
        self._is_forced = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would send itself the signal again at the end, and end by it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.take_signal)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def take_signal(self) -> None:
        if self._is_hurried.is_set():
            self._is_forced.set()
        if self.should_exit:
            self._is_hurried.set()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn waits for the connections, and would cancel what lasts too long without a word to it."""
        ending = asyncio.create_task(self._end_connections())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_connections(self) -> None:
        await _within(self._stop_seconds, self._is_hurried)
        self._end_answers()
        await _within(TELL_SECONDS, self._is_forced)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


async def _within(seconds: float, event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
