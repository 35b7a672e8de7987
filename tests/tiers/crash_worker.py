"""A process that works with a disk tier until it is killed: by itself, at the n-th time that it stands at the
door of the operating system or of LMDB, so that where it dies comes from a seed and not from a clock.

    crash_worker.py FOLDER NOTES SEED STEPS KILL_AT

It first looks whether all is there that the processes before it were promised, and nothing else, and tells
what is wrong; then it goes on with the work. NOTES outlives it: what is written to a file stays in the
kernel, and only the process dies. KILL_AT 0: it isn't killed, and ends with a whole account.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from kvstore.tiers.disk_dump import check_index
from tests.tiers.accounts import check_tier, sessions_dropped
from tests.tiers.lmdb_door import LmdbDoor
from tests.tiers.promises import ABSENT, NEVER, Deed, read_deeds
from tests.tiers.sized import CRASH_SIZES, open_tier
from tests.tiers.workload import Workload

DOORS = ("pwritev", "fdatasync", "fsync", "posix_fallocate", "ftruncate", "unlink", "replace")
IN_COMMIT_SECONDS_MAX = 0.004


class Notes:
    """Of deeds, a line for each begin and end."""

    def __init__(self, path: Path, count: int) -> None:
        """`count`: deeds that are noted there already."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._numbers: dict[int, int] = {}
        self._count = count
        self._lock = threading.Lock()

    def begin(self, deed: Deed) -> None:
        with self._lock:
            self._numbers[id(deed)] = self._count
            self._count += 1
            after = -1 if deed.after is None else self._numbers[id(deed.after)]
            self._note({"kind": deed.kind, "blocks": deed.blocks, "after": after})

    def end(self, deed: Deed) -> None:
        with self._lock:
            self._note({"end": deed.good, "deed": self._numbers[id(deed)]})

    def dropped(self, sessions: Iterable[int]) -> None:
        """At this start, for want of their blocks: when these are written again, they are nobody's still."""
        for session in sessions:
            deed = Deed("forget", {session: ABSENT})
            self.begin(deed)
            self.end(deed)

    def _note(self, note: dict[str, object]) -> None:
        os.write(self._fd, json.dumps(note).encode() + b"\n")


class Killer(LmdbDoor):
    """Ends the process at the n-th call: before it, in the middle of it, or after it."""

    def __init__(self, folder: Path, kill_at: int, seed: int) -> None:
        super().__init__(folder)
        self._left = kill_at
        self._way = random.Random(seed).choice(("before", "amid", "after"))
        self._part = random.Random(seed + 1).random()
        self._lock = threading.Lock()

    def stand(self, patch: pytest.MonkeyPatch) -> None:
        super().stand(patch)
        for name in DOORS:
            patch.setattr(os, name, self._guarded(name, getattr(os, name)))

    def opening(self, do: Callable[[], Any]) -> Any:
        return self._pass(do, self._killed_by_clock(do))

    def copying(self, path: Path, do: Callable[[], Any]) -> Any:
        return self._pass(do, self._killed_by_clock(do))

    def committing(self, env: Any, do: Callable[[], Any]) -> Any:
        return self._pass(do, self._killed_by_clock(do))

    def _guarded(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            def half() -> None:
                if name == "pwritev":
                    fd, parts, offset = arguments
                    data = [part[: int(part.nbytes * self._part) // 4096 * 4096] for part in parts]
                    real(fd, data[:1] if data[0].nbytes < parts[0].nbytes else data, offset)

            return self._pass(lambda: real(*arguments, **named), half)

        return call

    def _killed_by_clock(self, do: Callable[[], Any]) -> Callable[[], None]:
        def die_soon() -> None:
            time.sleep(self._part * IN_COMMIT_SECONDS_MAX)
            die()

        def amid() -> None:
            thread = threading.Thread(target=die_soon, daemon=True)
            thread.start()
            do()
            thread.join()

        return amid

    def _pass(self, do: Callable[[], Any], amid: Callable[[], None]) -> Any:
        with self._lock:
            self._left -= 1
            hit = self._left == 0
        if hit and self._way == "before":
            die()
        if hit and self._way == "amid":
            amid()
            die()
        result = do()
        if hit:
            die()
        return result


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    # Until the signal has arrived.
    threading.Event().wait()


def main(folder: Path, notes: Path, seed: int, steps: int, kill_at: int) -> None:
    deeds = read_deeds(notes)
    with pytest.MonkeyPatch.context() as patch:
        if kill_at:
            Killer(folder, kill_at, seed).stand(patch)
        check_index(folder)
        tier = open_tier(folder, CRASH_SIZES)
        found = check_tier(tier, CRASH_SIZES, deeds, NEVER)
        version = 1 + max((v for deed in deeds for v in deed.blocks.values()), default=0)
        account = Notes(notes, len(deeds))
        account.dropped(sessions_dropped(tier, deeds))
        work = Workload(tier, CRASH_SIZES, seed, account, found, version)
        work.run(steps)
        tier.close()
        print(len(found), len(work.blocks))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:6]))
