"""The engine's own thread, and the way to it from the event loop.

One thread makes the engine, runs it and closes it. Requests and cancellations come to it by a queue, which
`Admission` bounds; what becomes of them goes into each job's inbox. The thread waits for nobody who reads.
Deadlines are the event loop's: they hold while the thread is in a call that hangs. Cancellations are seen to
between two steps, or two tries to attach. An error that is no loss of the service ends the thread: all who
wait are told, and the server stops.
Tests: tests/engine/server/test_lives.py, test_serving.py.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from engine.acceptance import AnswerRoom
from engine.engine import Engine, EngineError
from engine.figures import NO_FIGURES, Figures
from engine.requests import Request, Stream, StreamState
from engine.server.errors import not_served
from engine.server.inbox import End, Inbox, News

__all__ = ["Bridge", "Job"]

# How often an idle engine looks whether its service is still there.
REST_SECONDS = 0.25

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """Requests that belong together, and their answers in order: those of the first, those of the second."""

    requests: Sequence[Request]
    inbox: Inbox
    # By time.monotonic().
    deadline: float
    # The engine's thread alone uses these.
    streams: list[Stream] = field(default_factory=list)
    told: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Cancel:
    job: Job
    answers: Sequence[int]


class Bridge:
    def __init__(self, open_engine: Callable[[], Engine], on_end: Callable[[], None] = lambda: None) -> None:
        """`open_engine` is called in the thread; `on_end` there too, when it ends, asked or not."""
        self._open_engine = open_engine
        self._on_end = on_end
        self._asked: queue.SimpleQueue[Job | _Cancel | None] = queue.SimpleQueue()
        # Guards the end, and who is to be told of it: nothing is asked for after it.
        self._lock = threading.Lock()
        self._has_ended = False
        self._jobs: dict[Job, asyncio.TimerHandle] = {}
        self._has_begun = threading.Event()
        self._engine: Engine | None = None
        self._places: dict[Stream, tuple[Job, int]] = {}
        self._thread = threading.Thread(target=self._run, name="engine")
        self.failure: Exception | None = None

    @property
    def is_attached(self) -> bool:
        engine = self._engine
        return engine is not None and engine.is_attached

    @property
    def figures(self) -> Figures:
        """Of the engine's memory; all zero where there is no engine."""
        engine = self._engine
        return NO_FIGURES if engine is None else engine.figures

    def find_answer_room(self, prompt_tokens: int, *, samples: int, beams: int) -> AnswerRoom:
        """How long an answer memory can ever hold behind such a prompt."""
        engine = self._engine
        if engine is None:
            raise not_served()
        return engine.find_answer_room(prompt_tokens, samples=samples, beams=beams)

    def start(self) -> None:
        """Returns when the engine has attached; raises what has kept it from that."""
        self._thread.start()
        self._has_begun.wait()
        if self.failure is not None:
            self._thread.join()
            raise self.failure

    def submit(self, job: Job) -> None:
        """In the event loop, as are `cancel` and `leave`. Raises ApiError where nobody is to answer it."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._has_ended:
                raise not_served()
            seconds = job.deadline - time.monotonic()
            self._jobs[job] = loop.call_later(max(seconds, 0.0), self._end_late, job)
            self._asked.put(job)

    def cancel(self, job: Job, answers: Sequence[int]) -> None:
        """Nothing more is told of these answers. Those that are done stay as they are."""
        if answers and not self._has_ended:
            self._asked.put(_Cancel(job, answers))

    def leave(self, job: Job, answers: Sequence[int]) -> None:
        """Nobody listens any more; `answers`: those that are not done."""
        with self._lock:
            self._jobs.pop(job).cancel()
        self.cancel(job, answers)

    def end_answers(self) -> None:
        """Those under way, at once, whatever the engine does; none is taken from then on. From any thread."""
        with self._lock:
            self._has_ended = True
            for job in self._jobs:
                job.inbox.end(End.CLOSED)

    def close(self) -> None:
        """Ends what is under way, and the engine."""
        self.ask_end()
        if self._thread.is_alive():
            self._thread.join()

    def ask_end(self) -> None:
        """As `close` does, and waits for nobody."""
        self._asked.put(None)

    def _end_late(self, job: Job) -> None:
        """Also where its reader is in the middle of sending: what is computed for it would be for nobody."""
        job.inbox.end(End.LATE)
        self.cancel(job, range(sum(request.samples for request in job.requests)))

    # --------------------------------------------------------------- the engine's thread

    def _run(self) -> None:
        try:
            with closing(self._open_engine()) as engine:
                self._engine = engine
                self._has_begun.set()
                self._serve(engine)
        except Exception as error:
            self.failure = error
            if self._has_begun.is_set():
                log.exception("the engine has failed")
        finally:
            self._engine = None
            # Nobody waits for an engine that is gone.
            self.end_answers()
            self._places.clear()
            self._has_begun.set()
            self._on_end()

    def _serve(self, engine: Engine) -> None:
        while self._take_asked(engine):
            if engine.has_work:
                for stream in engine.step():
                    self._tell(stream)
            else:
                engine.rest()

    def _take_asked(self, engine: Engine) -> bool:
        """Takes what has come, and waits for it a little if there is nothing else to do. False: the end."""
        try:
            while True:
                wait = None if engine.has_work else REST_SECONDS
                asked = self._asked.get(block=wait is not None, timeout=wait)
                if asked is None:
                    return False
                if isinstance(asked, Job):
                    self._begin(engine, asked)
                else:
                    self._cancel(engine, asked)
        except queue.Empty:
            return True

    def _begin(self, engine: Engine, job: Job) -> None:
        for request in job.requests:
            first = len(job.streams)
            try:
                stream = engine.submit(request)
            except EngineError as error:
                for streams in job.streams:
                    self._forget(engine, streams, "another prompt of the request was refused")
                job.inbox.put(first, News(end=End.FAILED, reason=str(error)))
                return
            job.streams += [stream, *stream.followers]
            job.told += [0] * request.samples
            for place in range(first, len(job.streams)):
                self._places[job.streams[place]] = job, place

    def _cancel(self, engine: Engine, asked: _Cancel) -> None:
        for answer in asked.answers:
            if answer < len(asked.job.streams):
                self._forget(engine, asked.job.streams[answer], "it was cancelled")

    def _forget(self, engine: Engine, stream: Stream, reason: str) -> None:
        if self._places.pop(stream, None) is not None:
            engine.cancel(stream, reason)

    def _tell(self, stream: Stream) -> None:
        if stream not in self._places:
            return
        job, answer = self._places[stream]
        begin = len(stream.request.prompt) + job.told[answer]
        tokens = stream.tokens[begin:]
        job.told[answer] += len(tokens)
        if tokens or stream.is_done:
            end, reason = _end_of(stream)
            cached = stream.cached.gpu + stream.cached.cpu + stream.cached.disk
            job.inbox.put(answer, News(tokens, min(cached, len(stream.request.prompt)), end, reason))
        if stream.is_done:
            del self._places[stream]


def _end_of(stream: Stream) -> tuple[End | None, str]:
    match stream.state:
        case StreamState.FINISHED:
            return (End.STOP if stream.tokens[-1] in stream.request.stop_ids else End.LENGTH), ""
        case StreamState.FAILED:
            return End.FAILED, stream.reason
        case _:
            return None, ""
