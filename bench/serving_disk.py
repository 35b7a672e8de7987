"""A chat's next turn whose history only the disk has: until its first token, over what it must take.

Engine and service are ended and started again on the same folder before each turn, so that neither memory
has any of it. What it must take: its bytes at the rate at which the device alone reads in the same run (past
the page cache, as the tier reads), and the bare model's pass over the new tokens. And beside that a turn of
the same lengths of which nothing is found, at the same server.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.disk_reference import Manner, bench_device
from bench.disk_tier import bench_folder
from bench.report import Row, make_row
from bench.serving_bench import Bench
from bench.serving_load import Answer, Job
from bench.serving_measured import measure_closed
from bench.serving_own import OwnTimes
from bench.serving_server import Server, server
from kvstore.tiers.pool import HostPool
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["measure"]

# In which a disk reads best here; how many threads and bytes an I/O (bench/disk_reference.py finds them).
MANNERS = (Manner(2, 4 << 20), Manner(4, 4 << 20), Manner(2, 16 << 20))
BLOCK_TOKENS = 16
WAIT_SECONDS = 120.0
SESSION = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    history_tokens: int
    new_tokens: int
    rounds: int


FULL = Sizes(history_tokens=4000, new_tokens=64, rounds=2)
QUICK = Sizes(history_tokens=800, new_tokens=32, rounds=1)


def measure(bench: Bench) -> Iterator[Row]:
    sizes = QUICK if bench.quick else FULL
    total = sizes.history_tokens + sizes.new_tokens
    history = bench.prompts.take(sizes.history_tokens)
    own = OwnTimes(bench.model, total)
    setup = bench.setup("full", 2 * total + 512)
    size = bench.memory_bytes(sizes.history_tokens)
    found, again, least, missed = [], [], [], 0
    with bench_folder() as folder, HostPool("bench", size >> 12, 1 << 12, 1) as pool:
        with server(setup, folder / "service") as running:
            _ask(running, history)
            _until_on_disk(running, sizes.history_tokens // BLOCK_TOKENS)
        for _ in range(sizes.rounds):
            with bench_device(folder, pool) as device:
                reading = min(device.read(manner).seconds for manner in MANNERS)
            with server(setup, folder / "service") as running:
                # Whatever a process does for the first time.
                measure_closed(running, [Job(turns=(bench.prompts.take(40),), answer_tokens=2)], 1)
                answer = _ask(running, (*history, *bench.prompts.take(sizes.new_tokens)))
                missed += sizes.history_tokens - answer.cached_tokens
                found.append(answer.first_token_seconds)
                least.append(reading + own.prefill(sizes.history_tokens, sizes.new_tokens))
                again.append(_ask(running, bench.prompts.take(total), session="").first_token_seconds)
    name = f"a turn with {sizes.history_tokens} tokens of history on disk and {sizes.new_tokens} new ones"
    yield make_row(f"{name}: tokens of history computed again", "", [missed], at_most=0)
    yield make_row(
        f"{name}: time to the first token, over its bytes at the disk's rate and the new tokens' prefill",
        "s",
        found,
        reference=least,
        ratio_at_most=bench.goal(1.25),
    )
    yield make_row(
        f"{name}: time to the first token of a turn computed again, over it",
        "s",
        again,
        reference=found,
        ratio_at_least=bench.goal(10),
    )


def _ask(running: Server, prompt: tuple[int, ...], session: str = SESSION) -> Answer:
    """One token more, which is the first."""
    return measure_closed(running, [Job(turns=(prompt,), answer_tokens=1, session=session)], 1).answers[0]


def _until_on_disk(running: Server, blocks: int) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while True:
        disk = next(each for each in running.usage().tiers if each.tier == pb.TIER_DISK)
        if disk.blocks_moved_in >= blocks:
            return
        if time.monotonic() > end:
            raise SystemExit(f"not on disk within {WAIT_SECONDS:g} s: {disk}")
        time.sleep(0.1)
