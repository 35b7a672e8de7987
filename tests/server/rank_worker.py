"""A worker process of an engine, which maps the pool of one rank, and the handle that a test has on it.

It is told what to do in lines of JSON, and answers each with one.
"""

import hashlib
import json
import select
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from kvstore.client import MappedPool, map_shared_rank
from tests.server.harness import BLOCK_BYTES, DEADLINE_SECONDS

ROOT = Path(__file__).resolve().parents[2]


def rank_content(number: int, rank: int) -> bytes:
    """What block `number` holds on this rank."""
    return (number << 8 | rank).to_bytes(4, "little") * (BLOCK_BYTES // 4)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class RankWorker:
    """A process of its own, made by exec, so that it has nothing of this one's."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.server.rank_worker"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        self.rank = -1

    def map(self, shared: bytes) -> None:
        """The pool of this rank, also anew after the service has ended."""
        self.rank = self._ask(do="map", shared=shared.hex())

    def write(self, frames: list[int], numbers: list[int]) -> None:
        """The rank's own bytes of these blocks, as its kernels would."""
        self._ask(do="write", frames=frames, numbers=numbers)

    def holds(self, frames: list[int], numbers: list[int]) -> bool:
        """Whether these frames hold the rank's own bytes of these blocks."""
        found = self._ask(do="read", frames=frames)
        return found == [digest(rank_content(number, self.rank)) for number in numbers]

    def wait_lost(self) -> None:
        """Until the service ends the tether, which a worker watches; it lets go of the memory then."""
        assert self._ask(do="wait_lost") == "lost"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _ask(self, **command: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the worker has died"
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def main() -> None:
    pool: MappedPool | None = None
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "map":
            pool = map_shared_rank(bytes.fromhex(command["shared"]))
            answer: object = pool.rank
        else:
            assert pool is not None
            answer = _do(pool, command)
        print(json.dumps(answer), flush=True)


def _do(pool: MappedPool, command: dict[str, Any]) -> object:
    match command["do"]:
        case "write":
            for frame, number in zip(command["frames"], command["numbers"], strict=True):
                pool.frames[frame, :BLOCK_BYTES] = list(rank_content(number, pool.rank))
            return None
        case "read":
            return [digest(pool.frames[frame, :BLOCK_BYTES].tobytes()) for frame in command["frames"]]
        case "wait_lost":
            readable, _, _ = select.select([pool.tether], [], [], DEADLINE_SECONDS)
            pool.close()
            return "lost" if readable else "held"
    raise ValueError(command)


if __name__ == "__main__":
    main()
