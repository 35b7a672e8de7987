"""Fills a tier on a small file system, in a process of its own: what is tested for might be its death.

    full_worker.py FOLDER

Prints how it went as JSON. The folder's file system is smaller than the cap, and others take a share of it.
"""

import contextlib
import json
import os
import sys
from contextlib import closing
from pathlib import Path

from kvstore.tiers.disk import DiskWriteFailed
from tests.tiers.conformance import Clock
from tests.tiers.promises import stored_key
from tests.tiers.sized import Sizes, find_versions, open_tier

SIZES = Sizes(250_000, 1)
CAP = 256 << 20


def main(folder: Path) -> None:
    said: dict[str, object] = {}
    # The tier knows how large the file system is, but not what others write there.
    (folder / "others").write_bytes(bytes(20 << 20))
    with closing(open_tier(folder / "disk", SIZES, CAP, clock=Clock())) as tier:

        def write(first: int) -> str:
            numbers = range(first, first + 8)
            try:
                tier.write(
                    [stored_key(number) for number in numbers], SIZES.filled(dict.fromkeys(numbers, 1))
                )
            except DiskWriteFailed as error:
                return str(error)
            kept.update(dict.fromkeys(numbers, 1))
            return ""

        def whole() -> bool:
            return find_versions(tier, SIZES, {number: {1} for number in kept}) == kept

        kept: dict[int, int] = {}
        first = 0
        while not (reason := write(first)):
            first += 100
        said |= {"segments": reason, "degraded": tier.degraded, "kept": len(kept), "whole": whole()}
        # Now the index: not a page more for it.
        tier.delete([stored_key(number) for number in list(kept)[-8:]])
        for number in list(kept)[-8:]:
            del kept[number]
        filler = folder / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        reasons = {write(first + 100 * turn) for turn in range(40)}
        said |= {"index": sorted(reasons - {""}), "index_whole": whole()}
        os.unlink(filler)
        # What could not be deleted is made up for.
        tier.delete([stored_key(number) for number in list(kept)[-16:]])
        for number in list(kept)[-16:]:
            del kept[number]
        said |= {"healed": write(90_000), "degraded_after": tier.degraded}
    with closing(open_tier(folder / "disk", SIZES, CAP)) as tier:
        said |= {"found": len(tier.found(SIZES.all_bytes)), "expected": len(kept)}
        said["found_whole"] = find_versions(tier, SIZES, {number: {1} for number in kept}) == kept
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
