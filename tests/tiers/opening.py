"""Opens folders as the service does at its start, uses them, and says how that went: a program of its own,
for a damaged index may end the process that opens it.

Arguments: the cap, and folders. Written is a line for each: `served`, `refused`, or how its process ended.
"""

import os
import sys
import traceback
from contextlib import closing
from pathlib import Path

from kvstore.core.errors import DiskInvalid
from kvstore.core.types import NamespaceId, StoredSession, TenantId
from kvstore.tiers.disk import DiskWriteFailed, ReadOutcome
from kvstore.tiers.disk_dump import check_index
from tests.tiers.helpers import chain, frames, key_of, open_tier, write

SERVED, REFUSED, BUG = 0, 10, 11
# Small, so that there are many in few bytes.
BLOCK = 100


def use(folder: Path, cap_bytes: int) -> int:
    """Everything that goes through the index: it is read whole, looked up, added to and taken from."""
    try:
        check_index(folder)
        tier = open_tier(folder, cap_bytes, BLOCK)
    except DiskInvalid:
        return REFUSED
    with closing(tier):
        found = tier.found(BLOCK)
        outcomes = tier.read(found, [frames(BLOCK) for _ in found])
        for first in (0, 1_000, 2_000):
            try:
                write(tier, chain(60, first), BLOCK)
                tier.note_uses(chain(60, first))
                tier.keep_sessions([_session(first)])
            except DiskWriteFailed:
                break
        tier.delete(found[::2])
        tier.delete(chain(60, 1_000))
        tier.settle()
        again = tier.found(BLOCK)
        outcomes += tier.read(again, [frames(BLOCK) for _ in again])
    return SERVED if ReadOutcome.LATE not in outcomes else BUG


def _session(number: int) -> StoredSession:
    keys = tuple(key_of(number + n) for n in range(60))
    return StoredSession(
        namespace=NamespaceId(1), tenant=TenantId(1), name=f"chat {number}", turn=1, keys=keys
    )


def _status_of(folder: Path, cap_bytes: int) -> str:
    child = os.fork()
    if not child:
        try:
            os._exit(use(folder, cap_bytes))
        except BaseException:
            traceback.print_exc()
            os._exit(BUG)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {SERVED: "served", REFUSED: "refused"}.get(code, f"ended with {code}")


if __name__ == "__main__":
    for argument in sys.argv[2:]:
        print(_status_of(Path(argument), int(sys.argv[1])), flush=True)
