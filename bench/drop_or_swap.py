"""Drop or swap with a real model on a CPU: `python -m bench.drop_or_swap [--json] [--quick] [--save]`.

A real service, and SmolLM2 computing into its pool. The links are limited to multiples of the rate at which
prefill makes KV, measured anew for each, so that both sides of the break-even are seen. At each length the
store is asked once what it would do, and both ways are then measured in turns: out, back in, and what is
missing computed again; all passes are told to the store, as an engine does. A choice counts as right where it
was the faster way by the median over pairs of rounds; lengths at which both ways took the same within a
quarter are left out. Where one way is twice as fast in both of two rounds, there is no third. Each length is
told on standard error when it has been measured; all of it takes some five minutes on two quiet cores.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from bench.processes import service
from bench.report import Row, main, make_row
from engine.batch import Batch
from engine.model import Llama
from engine.models import ModelNotFoundError, load_model_weights
from engine.requests import CHUNK_TOKENS, chunk_end
from kernels.layout import KVLayout
from kvstore.client import Client, Layout, operations
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["measure"]

BLOCK_TOKENS = 16
LENGTHS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 192)
LENGTHS_QUICK = (64, 256)
# Bandwidth of both links, in bytes that prefill makes in a second.
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
ROUNDS, ROUNDS_QUICK = 3, 1
# After so many rounds that all say that one way is so much faster, no more are needed.
ROUNDS_CLEAR, CLEAR = 2, 2.0
# What is told to the store before: each length at several places, the longest with a context behind it.
TOLD = ((0, 32), (0, 96), (0, 256), (256, 256), (0, 160), (0, 48), (256, 128), (0, 256), (0, 200), (512, 256))
TOLD_TOKENS = max(before + count for before, count in TOLD)
NEAR = 1.25
# For the load that the store sees, that of the last second, to be that of nobody again.
PAUSE_SECONDS = 1.5
WAIT_SECONDS = 120.0
AWAY = (pb.Sequence.SWAPPED, pb.Sequence.DROPPED)


@dataclass(frozen=True, slots=True)
class Choice:
    tokens: int
    chosen: str
    # By round.
    swap_seconds: list[float]
    drop_seconds: list[float]

    @property
    def ratio(self) -> float:
        """Of a swap over a drop."""
        return median([a / b for a, b in zip(self.swap_seconds, self.drop_seconds, strict=True)])

    @property
    def is_clear(self) -> bool:
        ratios = [a / b for a, b in zip(self.swap_seconds, self.drop_seconds, strict=True)]
        return len(ratios) >= ROUNDS_CLEAR and (min(ratios) > CLEAR or max(ratios) < 1 / CLEAR)

    @property
    def is_near(self) -> bool:
        return 1 / NEAR < self.ratio < NEAR

    @property
    def is_right(self) -> bool:
        return (self.chosen == "swap") == (self.ratio < 1)


def measure(quick: bool) -> Iterator[Row]:
    lengths, rounds = (LENGTHS_QUICK, ROUNDS_QUICK) if quick else (LENGTHS, ROUNDS)
    torch.set_num_threads(1)
    with _player() as player:
        for factor in FACTORS:
            player.limit(round(factor * player.learn()))
            choices: list[Choice] = []
            for tokens in lengths:
                choices.append(player.choose(tokens, rounds))
                _tell(factor, choices[-1])
            clear = [choice for choice in choices if not choice.is_near]
            right = [100.0 * choice.is_right for choice in clear] or [100.0]
            name = f"links at {factor:g} x the rate of prefill: right of {len(clear)} clear choices"
            yield make_row(name, "%", [sum(right) / len(right)], at_least=90)
            yield from [_row(factor, choice) for choice in choices]


def _tell(factor: float, choice: Choice) -> None:
    swap, drop = median(choice.swap_seconds), median(choice.drop_seconds)
    print(
        f"links at {factor:g} x, {choice.tokens} tokens: {choice.chosen} chosen; "
        f"swap {swap:.2f} s, drop {drop:.2f} s in {len(choice.swap_seconds)} rounds",
        file=sys.stderr,
        flush=True,
    )


def _row(factor: float, choice: Choice) -> Row:
    seconds = {"swap": choice.swap_seconds, "drop": choice.drop_seconds}
    other = "drop" if choice.chosen == "swap" else "swap"
    name = f"links at {factor:g} x, {choice.tokens} tokens: {choice.chosen}, over {other}"
    return make_row(name, "s", seconds[choice.chosen], reference=seconds[other])


@contextmanager
def _player() -> Iterator["Player"]:
    try:
        model = Llama(load_model_weights("smollm2"))
    except ModelNotFoundError as error:
        raise SystemExit(str(error)) from error
    pool_bytes = 2 * _layout(model).frame_stride_bytes * -(-TOLD_TOKENS // BLOCK_TOKENS)
    with service("--gpu", str(pool_bytes), "--cpu", str(pool_bytes)) as address, Client(address) as client:
        yield Player(model, client)


def _layout(model: Llama) -> KVLayout:
    return model.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=model.weights.dtype)


class Player:
    """An engine with one sequence at a time, whose KV is never committed: who drops it loses it."""

    def __init__(self, model: Llama, client: Client) -> None:
        layout = _layout(model)
        client.attach(
            Layout(
                block_tokens=BLOCK_TOKENS,
                block_bytes=layout.block_bytes,
                fingerprint=layout.fingerprint(model.weights.digest),
            )
        )
        self._model = model
        self._client = client
        self._pool = layout.view(client.pools[0].frames)
        self._token_bytes = layout.block_bytes / BLOCK_TOKENS
        self._sequence = 0
        self._tokens = np.random.default_rng(1).integers(1_000, 20_000, TOLD_TOKENS)

    def learn(self) -> float:
        """Prefills, tells how long that took, and returns the bytes of KV that it makes in a second."""
        self._begin(TOLD_TOKENS)
        seconds, tokens = 0.0, 0
        self._pass(0, CHUNK_TOKENS)
        for before, count in TOLD:
            seconds, tokens = seconds + self._pass(before, count), tokens + count
        self._end()
        return tokens / seconds * self._token_bytes

    def limit(self, bytes_per_second: int) -> None:
        limit = pb.RateLimit(bytes_per_second=bytes_per_second)
        self._client.operator.update_limits(pb.Limits(rates={"gpu_to_cpu": limit, "cpu_to_gpu": limit}))

    def choose(self, tokens: int, rounds: int) -> Choice:
        """What the store chooses, and what both ways take."""
        time.sleep(PAUSE_SECONDS)
        self._begin(tokens)
        chosen = self._ask(tokens, pb.SwapRequest.AUTO).decision.chosen
        self._wait(lambda: self._state in AWAY)
        self._end()
        choice = Choice(tokens, chosen, [], [])
        while len(choice.swap_seconds) < rounds and not choice.is_clear:
            choice.swap_seconds.append(self._play(tokens, pb.SwapRequest.KEEP))
            choice.drop_seconds.append(self._play(tokens, pb.SwapRequest.DROP))
        return choice

    def _play(self, tokens: int, mode: pb.SwapRequest.Mode.ValueType) -> float:
        """Out, back, and all tokens there again."""
        self._begin(tokens)
        began = time.perf_counter()
        self._ask(tokens, mode)
        self._wait(lambda: self._state in AWAY)
        self._client.step([operations.swap_in(self._sequence)])
        self._wait(lambda: self._state == pb.Sequence.RESIDENT)
        # The last token is computed in any case.
        before = min(self._client.tables.valid_tokens(self._sequence), tokens - 1)
        while before < tokens:
            end = chunk_end(before, tokens)
            self._pass(before, end - before)
            before = end
        took = time.perf_counter() - began
        self._end()
        return took

    # ---------------------------------------------------------------------- an engine's calls

    @property
    def _state(self) -> pb.Sequence.State.ValueType:
        return self._client.tables.state(self._sequence)

    def _begin(self, tokens: int) -> None:
        self._sequence += 1
        self._client.step([operations.allocate(self._sequence, tokens)])

    def _end(self) -> None:
        self._client.step([operations.free([self._sequence], pb.FreeRequest.DISCARD)])

    def _ask(self, tokens: int, mode: pb.SwapRequest.Mode.ValueType) -> pb.SwapResponse:
        response = self._client.step([operations.swap_out(self._sequence, tokens, mode)])
        return response.results[0].swap

    def _wait(self, until: Callable[[], bool]) -> None:
        deadline = time.perf_counter() + WAIT_SECONDS
        while not until():
            if time.perf_counter() > deadline:
                raise SystemExit(f"the sequence is {pb.Sequence.State.Name(self._state)}")
            self._client.wait_events(1.0, completed_step=self._client.next_step - 1)

    def _pass(self, before: int, count: int) -> float:
        began = time.perf_counter()
        batch = Batch.prefill(
            self._ids(before, count),
            cached=before,
            block_table=self._client.tables.table(self._sequence),
            block_tokens=BLOCK_TOKENS,
        )
        self._model.forward(batch, self._pool)
        took = time.perf_counter() - began
        timing = operations.timing(self._client.next_step - 1, took, prefilled=[(before, count)])
        self._client.step([], timings=[timing])
        return took

    def _ids(self, before: int, count: int) -> Sequence[int]:
        ids: list[int] = self._tokens[before : before + count].tolist()
        return ids


if __name__ == "__main__":
    main("drop_or_swap", "Drop or swap against the clock.", measure)
