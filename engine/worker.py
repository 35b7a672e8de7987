"""An engine as a process of its own: requests come in on stdin, what becomes of them goes out on stdout.

    python -m engine.worker --model smollm2 --address unix:/path/of/kvstore.sock
    python -m engine.worker --model smollm2 --plain          (no service: the run to compare with)

One JSON object a line, both ways. In:

    {"request": "a1", "prompt": [1, 2], "max_new_tokens": 24}     perhaps session, turn, priority, stop
    {"digests": [["key", "digest"], ...]}       hexadecimal: what an earlier worker has told

Out:

    {"event": "attached", "engine": "engines/..."}              also after each loss of the service
    {"event": "digests", "digests": [["key", "digest"], ...]}   before the commit of these blocks
    {"event": "admitted", "request", "cached_tokens", "gpu_tokens", "cpu_tokens", "disk_tokens"}
    {"event": "token", "request", "count"}
    {"event": "finished", "request", "tokens", "margins", "ttft_ms", "preemptions"}
    {"event": "failed", "request", "reason"}
    {"event": "blocks", "verified", "wrong", "unknown"}          totals, when they have changed
    {"event": "error", "reason"}                                 the last one

At the end of stdin it ends what it was asked for, then itself.
"""

import argparse
import json
import queue
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch

from engine.device import Device, DeviceRefused
from engine.devices import open_device
from engine.digests import Digests
from engine.engine import Engine, EngineError
from engine.model import Llama
from engine.models import DTYPES, ModelNotFoundError, load_model_weights
from engine.names import DEVICE_HELP, MODEL_NAMES
from engine.plain import answer_plainly
from engine.requests import Request, Stream, StreamState
from kvstore.client import Client, ClientError

__all__ = ["main"]

BLOCK_TOKENS = 16
# How often an idle worker looks whether its service is still there.
REST_SECONDS = 0.25

# What a line says, as JSON has it.
Line = dict[str, Any]


def main() -> int:
    options = _parse_options()
    torch.set_num_threads(options.threads)
    try:
        device = open_device(options.device)
        model = Llama(device.place(load_model_weights(options.model, DTYPES[options.dtype])))
        if options.plain:
            _run_plainly(model)
        else:
            _Worker(model, device, options.address, options.attach_seconds).run()
    except (ClientError, DeviceRefused, ModelNotFoundError, ValueError, OSError) as error:
        _tell(event="error", reason=f"{type(error).__name__}: {error}")
        return 1
    return 0


class _Worker:
    """Streams by request, and how much of each has been told."""

    def __init__(self, model: Llama, device: Device, address: str, attach_seconds: float) -> None:
        layout = model.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=model.weights.dtype)
        self._digests = Digests(layout.block_bytes, _tell_digests)
        self._engine = Engine(
            model,
            Client(address),
            device=device,
            digests=self._digests,
            block_tokens=BLOCK_TOKENS,
            attach_seconds=attach_seconds,
            is_ahead=device.is_late,
        )
        self._attachments = 0
        self._counts: Line = {}
        self._admissions: dict[str, int] = {}
        # Requests, digests of earlier workers, and at the end of stdin None.
        self._taken: queue.SimpleQueue[Request | Line | None] = queue.SimpleQueue()
        # A daemon: a read from stdin cannot be interrupted when an error ends the worker.
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def run(self) -> None:
        is_open = True
        while is_open or self._engine.has_work:
            self._tell_attachment()
            is_open = self._take_lines() and is_open
            if self._engine.has_work:
                for stream in self._engine.step():
                    self._tell_stream(stream)
                self._tell_counts()
            elif is_open:
                self._engine.rest()
        self._engine.close()

    def _read(self) -> None:
        try:
            for line in _read_lines():
                # Made here, so that the time that it waits for a step to end counts as well.
                self._taken.put(line if "digests" in line else _to_request(line))
        except (ValueError, KeyError, TypeError) as error:
            _tell(event="error", reason=f"a line that cannot be understood: {error!r}")
        self._taken.put(None)

    def _take_lines(self) -> bool:
        """Takes what has come, and waits for it a little if there is nothing else to do. False: the end."""
        try:
            while True:
                wait = None if self._engine.has_work else REST_SECONDS
                taken = self._taken.get(block=wait is not None, timeout=wait)
                if taken is None:
                    return False
                self._take(taken)
        except queue.Empty:
            return True

    def _take(self, taken: Request | Line) -> None:
        if not isinstance(taken, Request):
            pairs = ((bytes.fromhex(key), bytes.fromhex(digest)) for key, digest in taken["digests"])
            self._digests.learn(pairs)
            return
        try:
            self._engine.submit(taken)
        except EngineError as error:
            _tell(event="failed", request=taken.id, reason=str(error))

    def _tell_attachment(self) -> None:
        if self._attachments != self._engine.attachments:
            self._attachments = self._engine.attachments
            _tell(event="attached", engine=self._engine.name)

    def _tell_stream(self, stream: Stream) -> None:
        request, cached = stream.request.id, stream.cached
        if stream.admissions != self._admissions.get(request, 0):
            self._admissions[request] = stream.admissions
            tiers = {"gpu_tokens": cached.gpu, "cpu_tokens": cached.cpu, "disk_tokens": cached.disk}
            _tell(event="admitted", request=request, cached_tokens=sum(tiers.values()), **tiers)
        if stream.state is StreamState.FAILED:
            _tell(event="failed", request=request, reason=stream.reason)
        elif stream.margins:
            _tell(event="token", request=request, count=len(stream.margins))
        if stream.state is StreamState.FINISHED:
            _tell_finished(
                request, stream.answer, stream.margins, stream.first_token_seconds, stream.preemptions
            )
        if stream.is_done:
            self._admissions.pop(request, None)

    def _tell_counts(self) -> None:
        counts = asdict(self._digests.counts)
        if counts != self._counts:
            self._counts = counts
            _tell(event="blocks", **counts)


def _run_plainly(model: Llama) -> None:
    for line in _read_lines():
        request = _to_request(line)
        answer = answer_plainly(model, request.prompt, request.max_new_tokens, request.stop_ids, BLOCK_TOKENS)
        _tell_finished(request.id, answer.tokens, answer.margins, answer.first_token_seconds, 0)


def _tell_finished(
    request: str, tokens: list[int], margins: list[float], first_token_seconds: float, preemptions: int
) -> None:
    _tell(
        event="finished",
        request=request,
        tokens=tokens,
        margins=margins,
        ttft_ms=round(1000 * first_token_seconds, 1),
        preemptions=preemptions,
    )


def _tell_digests(digests: Mapping[bytes, bytes]) -> None:
    _tell(event="digests", digests=[[key.hex(), digest.hex()] for key, digest in digests.items()])


def _tell(**line: Any) -> None:
    # One write of a whole line: what was told before a SIGKILL can be read to the end.
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _read_lines() -> Iterator[Line]:
    for line in sys.stdin:
        if line.strip():
            yield json.loads(line)


def _to_request(line: Line) -> Request:
    return Request(
        id=line["request"],
        prompt=tuple(line["prompt"]),
        max_new_tokens=line["max_new_tokens"],
        session=line.get("session", ""),
        turn=line.get("turn", 0),
        priority=line.get("priority", 0),
        stop_ids=frozenset(line.get("stop", ())),
    )


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.worker")
    models = f"{', '.join(MODEL_NAMES)}, a GGUF file, or a folder with config.json and *.safetensors"
    parser.add_argument("--model", required=True, help=models)
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="of weights and KV")
    parser.add_argument("--device", default="cpu", help=DEVICE_HELP)
    parser.add_argument("--address", default="", help="the service's socket, unix:PATH; empty: the default")
    parser.add_argument("--plain", action="store_true", help="no service: compute everything")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--attach-seconds", type=float, default=60.0, help="how long a service may be away")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
