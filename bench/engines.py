"""Four engines at once, each in a process of its own and stepping as fast as it can.

All begin at the same moment and end when the time is up; four clients of the echo do the same. The client
side is the stub, as in `roundtrip.py`.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import accumulate, repeat
from multiprocessing.connection import Connection
from statistics import median

import grpc

from bench.calls import Streamed
from bench.echo import echo_stream, echo_unary
from bench.load import LAP_STEPS, RawEngine
from bench.processes import Addresses
from bench.report import Row, make_row
from bench.roundtrip import FORMS, echo_of_step, time_calls, time_lap

__all__ = ["four_engines"]

ENGINES = 4
ROUND_SECONDS = 0.5
LEAD_SECONDS = 0.05


def four_engines(addresses: Addresses, rounds: int) -> list[Row]:
    rows = []
    for columns, what in FORMS.items():
        with _workers(addresses, columns) as workers:
            for form in ("unary", "stream"):
                rows += _rows(workers, what, form, rounds)
    return rows


def _rows(workers: list[Connection], what: str, form: str, rounds: int) -> list[Row]:
    samples, references, evenness = [], [], []
    for _ in range(rounds + 1):
        steps = _together(workers, f"step {form}")
        samples.append(_median_us(steps))
        references.append(_median_us(_together(workers, f"echo {form}")))
        counts = [len(each) for each in steps]
        evenness.append(min(counts) / max(counts))
    name = f"four engines at once: {what}, {form}"
    return [
        make_row(name, "us", samples[1:], reference=references[1:], ratio_at_most=1.3),
        make_row(f"{name}: slowest over fastest", "", evenness[1:], at_least=0.5),
    ]


def _median_us(seconds: list[list[float]]) -> float:
    return median(each for worker in seconds for each in worker) * 1e6


def _together(workers: list[Connection], task: str) -> list[list[float]]:
    """The seconds of every call, by worker."""
    begin = time.monotonic() + LEAD_SECONDS
    for worker in workers:
        worker.send((task, begin))
    return [worker.recv() for worker in workers]


@contextmanager
def _workers(addresses: Addresses, columns: bool) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        workers = []
        for _ in range(ENGINES):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, addresses, columns))
            process.start()
            stack.callback(process.join)
            stack.callback(ours.close)  # Its end is what ends the process.
            theirs.close()
            workers.append(ours)
        for worker in workers:
            worker.recv()  # It is ready.
        yield workers


def _work(tasks: Connection, addresses: Addresses, columns: bool) -> None:
    request = echo_of_step(addresses.service, columns)
    with ExitStack() as stack:
        service = stack.enter_context(grpc.insecure_channel(addresses.service))
        echo = stack.enter_context(grpc.insecure_channel(addresses.echo))
        engine = RawEngine(service)
        step_stream = stack.enter_context(Streamed(engine.stub.StepStream))
        stream = stack.enter_context(Streamed(echo_stream(echo)))
        unary = echo_unary(echo)
        rounds: dict[str, Callable[[], list[float]]] = {
            "step unary": lambda: time_lap(engine, engine.stub.Step, columns),
            "step stream": lambda: time_lap(engine, step_stream, columns),
            "echo unary": lambda: time_calls(unary, repeat(request, LAP_STEPS)),
            "echo stream": lambda: time_calls(stream, repeat(request, LAP_STEPS)),
        }
        tasks.send([])
        while True:
            try:
                task, begin = tasks.recv()
            except EOFError:
                return engine.detach()
            time.sleep(max(0.0, begin - time.monotonic()))
            seconds: list[float] = []
            while time.monotonic() < begin + ROUND_SECONDS:
                seconds += rounds[task]()
            # A round ends with a whole lap: what came after the time was up does not count.
            tasks.send(
                [each for each, end in zip(seconds, accumulate(seconds), strict=True) if end < ROUND_SECONDS]
            )
