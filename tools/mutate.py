"""Plants each fault of `mutations.txt` in a copy of the tree, and looks whether the tests find it.

    python tools/mutate.py [WORD …]

With words, only faults whose name has one of them. Ends in 1 where a fault is not found within a minute, or
where its lines are not in the code exactly once any more.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["Mutation", "main", "plant", "read_mutations"]

ROOT = Path(__file__).parent.parent
LIST = ROOT / "tools" / "mutations.txt"
COPIED = ("bench", "engine", "kernels", "kvstore", "tests", "pyproject.toml")
SECONDS_MAX = 60.0
# The core first; what else stands nearest to a file that is not of the core.
CORE = ("tests/core", "tests/policy", "tests/sim")
TIERS = (
    "disk_index",
    "disk_order",
    "disk_io",
    "slots",
    "turns",
    "disk_tickets",
    "mover_writes",
    "mover",
    "mover_late",
    "disk_faults",
    "disk_late",
    "disk_layout",
    "disk",
    "movers",
    "pacing",
    "rates",
)
KERNELS = (
    "arguments",
    "quantised_replicas",
    "far_frames",
    "store_kv",
    "quantize_blocks",
    "paged_attention_decode",
)
ENGINE = ("passes", "steps", "decode_graphs", "haste", "left_out", "late_device")
SCHEDULING = ("scheduler", "haste", "promises", "awaited")
TESTS = {
    "engine": tuple(f"tests/engine/test_{name}.py" for name in ENGINE),
    "engine/kv": ("tests/engine/kv/test_granting.py",),
    "engine/scheduling": tuple(f"tests/engine/test_{name}.py" for name in SCHEDULING),
    "kernels": tuple(f"tests/kernels/test_{name}.py" for name in KERNELS),
    "kvstore/client": ("tests/client/test_keys.py",),
    "kvstore/observe": ("tests/observe/test_counting.py",),
    "kvstore/server": ("tests/server/test_metrics_http.py", "tests/server/test_metrics_address.py"),
    # The quick ones of tests/tiers. What else stands there would find these faults too, and takes minutes.
    "kvstore/tiers": tuple(f"tests/tiers/test_{name}.py" for name in TIERS),
}
# Of what has to do with GPUs, in whatever package.
CUDA = tuple(
    f"tests/cuda/test_{name}.py"
    for name in ("streams", "copies", "pinning", "pool", "thread", "client", "every_call", "bindings")
)
FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """`old` and `new` are whole lines."""

    name: str
    path: str
    old: str
    new: str

    @property
    def tests(self) -> tuple[str, ...]:
        if "cuda" in self.path or "pinning" in self.path:
            return CUDA
        return TESTS.get(str(Path(self.path).parent), CORE)


def read_mutations(text: str) -> list[Mutation]:
    """Paragraphs; the first is for people."""
    mutations: list[Mutation] = []
    for paragraph in text.strip().split("\n\n")[1:]:
        name, path, *lines = paragraph.splitlines()
        old = [line[1:] for line in lines if line.startswith("-")]
        new = [line[1:] for line in lines if line.startswith("+")]
        if not old or len(old) + len(new) != len(lines):
            raise ValueError(f"{name}: lines begin with - or +, and some with -")
        joined = "".join(f"{line}\n" for line in old), "".join(f"{line}\n" for line in new)
        mutations.append(Mutation(name=name, path=path, old=joined[0], new=joined[1]))
    return mutations


def plant(mutation: Mutation, source: str) -> str:
    """The source with the fault. ValueError where its lines are not there exactly once."""
    places = [found.start() for found in re.finditer(f"^{re.escape(mutation.old)}", source, re.MULTILINE)]
    if len(places) != 1:
        raise ValueError(f"{mutation.name}: its lines stand {len(places)} times in {mutation.path}")
    planted = source[: places[0]] + mutation.new + source[places[0] + len(mutation.old) :]
    compile(planted, mutation.path, "exec")
    return planted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("words", nargs="*", help="only faults whose name has one of these")
    words = parser.parse_args().words
    mutations = [
        each
        for each in read_mutations(LIST.read_text())
        if not words or any(word in each.name for word in words)
    ]
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, scratch / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, scratch / name)
        for tests in {each.tests for each in mutations}:
            found, seconds = _run_tests(scratch, tests)
            if found:
                print(f"{' '.join(tests)}: {found}, with no fault planted")
                return 1
            print(f"{seconds:6.1f} s  {' '.join(tests)}: nothing, with no fault planted", flush=True)
        left = [each for each in mutations if not _is_found(scratch, each)]
    print(f"{len(mutations)} faults, {len(left)} not found")
    return 1 if left else 0


def _is_found(scratch: Path, mutation: Mutation) -> bool:
    path = scratch / mutation.path
    source = path.read_text()
    try:
        path.write_text(plant(mutation, source))
        found, seconds = _run_tests(scratch, mutation.tests)
    except ValueError as error:
        found, seconds = "", 0.0
        print(error)
    finally:
        path.write_text(source)
    print(f"{seconds:6.1f} s  {mutation.name}: {found or 'NOT FOUND'}", flush=True)
    return bool(found)


def _run_tests(scratch: Path, tests: tuple[str, ...]) -> tuple[str, float]:
    """The first test that fails, or nothing; and how long it took."""
    # No bytecode: it goes by size and second, and a planted fault may have changed neither.
    environment = os.environ | {"PYTHONPATH": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}
    # A test that hangs has failed.
    options = ("-x", "-q", "-p", "no:cacheprovider", "--timeout=20")
    command = [sys.executable, "-m", "pytest", *options, *tests]
    begin = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=scratch,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", SECONDS_MAX
    seconds = time.monotonic() - begin
    if done.returncode < 0:
        # As of a copy to memory that is mapped no more.
        return f"signal {-done.returncode}", seconds
    if done.returncode not in (0, FAILED):
        raise RuntimeError(f"the tests can't be run:\n{done.stdout}{done.stderr}")
    test = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return (test[1] if test else "a test") if done.returncode else "", seconds


if __name__ == "__main__":
    sys.exit(main())
