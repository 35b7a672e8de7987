"""What a GPU makes of kvstore, in under five minutes: `make gpu-check`, or `python -m bench.gpu_check`.

Part by part, each in a process of its own with a limit of time: where one hangs or dies, its rows so far and
those of the others are told, and a row says that it did. Nothing is downloaded. Without a GPU it says what is
missing and ends with status 2. docs/operations.md tells how to read the table.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.gpu_place import NoGpu, find_place
from bench.report import ROOT, Row, add_options, make_row, tell

__all__ = ["NO_GPU", "PARTS", "Part", "check_all", "run_part"]

NO_GPU = 2
# For all parts together; who comes late gets what is left.
BUDGET_SECONDS = 290.0
# Of its errors, what is shown of a part that has failed.
LAST_LINES = 12


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    seconds: float

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.gpu_part", self.name]


# In this order: what is to be known first comes first.
PARTS = (
    Part("sharing", 40),
    Part("kernels", 75),
    Part("roundtrip", 35),
    Part("swap", 40),
    Part("attention", 20),
    Part("decode", 45),
    Part("demo", 60),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_check", description=__doc__)
    add_options(parser, "gpu")
    parser.add_argument("--part", action="append", choices=[part.name for part in PARTS], help="only these")
    parser.add_argument("--output", type=Path, help="file for all rows as one JSON object")
    arguments = parser.parse_args()
    try:
        place = find_place()
    except NoGpu as error:
        print(f"bench.gpu_check: no GPU to check: {error}; nothing was measured", file=sys.stderr)
        sys.exit(NO_GPU)
    parts = [part for part in PARTS if not arguments.part or part.name in arguments.part]
    flags = ["--quick"] if arguments.quick else []
    tell("gpu", check_all(parts, flags), arguments, device=place.gpu, output=arguments.output)


def check_all(parts: Sequence[Part], flags: Sequence[str], budget: float = BUDGET_SECONDS) -> Iterator[Row]:
    end = time.monotonic() + budget
    for part in parts:
        yield from run_part(part.name, [*part.command, *flags], min(part.seconds, end - time.monotonic()))


def run_part(name: str, command: Sequence[str], seconds: float) -> Iterator[Row]:
    """Its rows as they come, and one more that says whether it came to its end in time."""
    if seconds <= 0:
        yield _ended(name, False)
        return
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.extend(_pipe(process.stderr)), name=f"{name} errors")
    reader.start()
    limit = threading.Timer(seconds, _kill, (process.pid,))
    limit.start()
    try:
        for line in _pipe(process.stdout):
            if line.startswith("{"):
                yield Row(**json.loads(line))
    finally:
        status = process.wait()
        limit.cancel()
        limit.join()
        reader.join()
        _close(process)
    if status:
        print(
            "".join(f"{name}| {line}" for line in errors[-LAST_LINES:]), file=sys.stderr, end="", flush=True
        )
    yield _ended(name, status == 0)


def _kill(pid: int) -> None:
    """With all that it has started, services in sessions of their own too. What hangs in the driver hears no
    gentler signal."""
    try:
        part = psutil.Process(pid)
        processes = [part, *part.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _ended(name: str, is_good: bool) -> Row:
    return make_row(f"{name}: came to its end (1: yes)", "", [float(is_good)], at_least=1)


def _pipe(pipe: object) -> Iterator[str]:
    if not hasattr(pipe, "__iter__"):
        raise TypeError("the part was started without pipes")
    yield from pipe


def _close(process: "subprocess.Popen[str]") -> None:
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


if __name__ == "__main__":
    main()
