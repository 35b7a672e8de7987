"""What kvstore costs the engine: its decode steps over the service, and over frames and tables of its own.

    python -m bench.engine_overhead [--json] [--quick] [--save]

The same engine twice in one process, with the same model and the same eight sequences: over `kvstore serve`,
where each step is sent while the pass before it runs, and over the in-process paged cache of `--kv paged`, of
which each step costs microseconds; both as `kvstore-engine serve` has them. They take turns step by step,
and the first of two changes with each pair; of a round the lower quartile counts, which the work of others
disturbs less than the median. Told beside the whole are the part of a step that is not the forward pass, and
the CPU time of the engine's process, in which the service's share can be seen where machines are too noisy
for the whole.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from statistics import fmean

import torch

from bench.processes import service
from bench.report import Row, main, make_row
from engine.batch import Batch
from engine.device import CpuDevice, Logits
from engine.engine import Engine
from engine.kv.in_process import InProcess
from engine.kv.set_ups import FULL, PAGED, SetUp
from engine.kv.store_client import StoreClient
from engine.model import Llama
from engine.models import load_model_weights
from engine.requests import Request
from kvstore.client import Client

__all__ = ["measure"]

SEQUENCES, PROMPT_TOKENS, BLOCK_TOKENS = 8, 256, 16
# As the server has them by default.
THREADS = 2
OVERHEAD_MAX = 1.01
ROUNDS, ROUNDS_QUICK = 24, 3
# Steps of each in a round: a block's worth, so that each round has what comes once a block.
STEPS = BLOCK_TOKENS
WARM_STEPS = 4


class TimedDevice(CpuDevice):
    """Notes what the forward pass of a step took."""

    def __init__(self) -> None:
        super().__init__()
        self.forward_seconds = 0.0

    def forward(self, model: Llama, batch: Batch, pool: torch.Tensor) -> Logits:
        began = time.perf_counter()
        logits = super().forward(model, batch, pool)
        self.forward_seconds = time.perf_counter() - began
        return logits


class Decoding:
    """An engine with eight sequences under way."""

    def __init__(self, model: Llama, client: StoreClient, set_up: SetUp, new_tokens: int) -> None:
        self._device = TimedDevice()
        self.engine = Engine(
            model,
            client,
            set_up=set_up,
            is_ahead=set_up.has_service,
            device=self._device,
            block_tokens=BLOCK_TOKENS,
            running_max=SEQUENCES,
        )
        draw, streams = random.Random(4), []
        for number in range(SEQUENCES):
            # None of them ends a block with the others.
            tokens = PROMPT_TOKENS + 2 * number
            prompt = tuple(draw.randrange(model.config.vocab_size) for _ in range(tokens))
            request = Request(id=str(number), prompt=prompt, max_new_tokens=new_tokens)
            streams.append(self.engine.submit(request))
        while sum(bool(stream.margins) for stream in streams) < SEQUENCES:
            self.engine.step()
        self.steps: list[float] = []
        self.outside: list[float] = []
        self.cpu: list[float] = []

    def step(self) -> None:
        began, cpu_began = time.perf_counter(), time.process_time()
        news = self.engine.step()
        took, cpu_took = time.perf_counter() - began, time.process_time() - cpu_began
        if len(news) != SEQUENCES:
            raise SystemExit(f"a step has decoded {len(news)} sequences, not {SEQUENCES}")
        self.steps.append(1e3 * took)
        self.outside.append(1e3 * (took - self._device.forward_seconds))
        self.cpu.append(1e3 * cpu_took)

    def take(self) -> tuple[float, float, float]:
        """Means of what was noted since: of whole steps, outside the forward pass, and of CPU time."""
        taken = fmean(self.steps), fmean(self.outside), fmean(self.cpu)
        self.steps, self.outside, self.cpu = [], [], []
        return taken


def measure(quick: bool) -> Iterator[Row]:
    rounds = ROUNDS_QUICK if quick else ROUNDS
    torch.set_num_threads(THREADS)
    model = Llama(load_model_weights("smollm2"))
    layout = model.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=model.weights.dtype)
    new_tokens = SEQUENCES * 4 + WARM_STEPS + (rounds + 1) * STEPS
    frames = SEQUENCES * (-(-(PROMPT_TOKENS + 2 * SEQUENCES + new_tokens) // BLOCK_TOKENS) + 1)
    pool_bytes = frames * layout.frame_stride_bytes
    with ExitStack() as stack:
        address = stack.enter_context(service("--gpu", str(pool_bytes), "--cpu", str(pool_bytes)))

        def decode(client: StoreClient, set_up: SetUp) -> Decoding:
            decoding = Decoding(model, client, set_up, new_tokens)
            stack.enter_context(closing(decoding.engine))
            return decoding

        ours, plain = decode(Client(address), FULL), decode(InProcess(pool_bytes), PAGED)
        _in_turns(ours.step, plain.step, WARM_STEPS)
        ours.take(), plain.take()
        taken = []
        for _ in range(rounds):
            _in_turns(ours.step, plain.step, STEPS)
            taken.append((*ours.take(), *plain.take()))
    steps, outside, cpu, plain_steps, plain_outside, plain_cpu = (
        list(column) for column in zip(*taken, strict=True)
    )
    name = f"decode step of {SEQUENCES} sequences of SmolLM2, {PROMPT_TOKENS} tokens and more, float32"
    yield make_row(
        f"{name}, over kvstore [in process]",
        "ms",
        steps,
        reference=plain_steps,
        ratio_at_most=OVERHEAD_MAX,
    )
    yield make_row(
        "of it outside the forward pass, over kvstore [in process]", "ms", outside, reference=plain_outside
    )
    yield make_row(
        "its CPU time in the engine's process, over kvstore [in process]", "ms", cpu, reference=plain_cpu
    )
    added = [
        100 * (ours_ms - plain_ms) / step_ms
        for ours_ms, plain_ms, step_ms in zip(outside, plain_outside, plain_steps, strict=True)
    ]
    yield make_row("what kvstore adds outside the forward pass, of a step", "%", added, at_most=1)


def _in_turns(one: Callable[[], None], other: Callable[[], None], count: int) -> None:
    for number in range(count):
        for step in (one, other) if number % 2 else (other, one):
            step()


if __name__ == "__main__":
    main("engine_overhead", "What kvstore costs the engine's decode steps.", measure)
