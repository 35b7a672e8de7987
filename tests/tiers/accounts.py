"""What must be true of a folder whenever it is opened, however the process before ended: asked of the tier
itself and of its index file.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from kvstore.core.types import StoredKey
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.disk_format import BlockEntry
from tests.tiers.promises import (
    ABSENT,
    CHAIN,
    NEVER,
    Broken,
    Deed,
    allowed_at,
    allowed_sessions,
    overtaken,
    stored_key,
    stored_session,
    torn_batches,
)
from tests.tiers.sized import Sizes, find_versions

__all__ = ["check_sessions", "check_space", "check_tier", "numbers_of", "sessions_dropped"]


def check_tier(tier: DiskTier, sizes: Sizes, deeds: Sequence[Deed], point: int) -> dict[int, int]:
    """Opened after everything had ended at `point`. Returns the blocks that are there and their versions."""
    allowed = allowed_at(deeds, point)
    listed = numbers_of(tier.found(sizes.all_bytes), allowed)
    if tier.counts.orphans:
        raise Broken(f"{tier.counts.orphans} blocks hang on nothing")
    for number in sorted(set(listed) - set(allowed)):
        raise Broken(f"block {number} is there, and nobody has written it")
    # Also those that are not listed: they may be there all the same.
    found = find_versions(tier, sizes, allowed)
    if set(found) != set(listed):
        raise Broken(f"listed and read differ: {sorted(set(found) ^ set(listed))}")
    for number, versions in allowed.items():
        version = found.get(number, ABSENT)
        if version not in versions:
            raise Broken(f"block {number} is version {version}, where {sorted(versions)} are possible")
    for deed in torn_batches(deeds, point, found):
        raise Broken(f"half a batch is there: of {deed.blocks}, {found}")
    for deed in overtaken(deeds, point, found):
        raise Broken(f"{deed.blocks} are there, and not {deed.after}, which was begun before: {found}")
    # The order of a write leaves no entry whose bytes aren't there; whatever is wrong, it is not by this.
    if tier.counts.bad_entries:
        raise Broken(f"{tier.counts.bad_entries} entries whose bytes are wrong")
    check_sessions(tier, deeds, point, found)
    check_space(tier)
    return found


def check_sessions(tier: DiskTier, deeds: Sequence[Deed], point: int, found: Collection[int]) -> None:
    """A session without any of its blocks is dropped when the folder is opened; a chain's head goes last."""
    listed = {int(session.name.removeprefix("chat ")): session for session in tier.sessions()}
    allowed = allowed_sessions(deeds, point)
    for chain in set(listed) | set(allowed):
        session = listed.get(chain)
        versions = allowed.get(chain, {ABSENT})
        if CHAIN * chain not in found:
            versions = versions | {ABSENT}
        version = session.turn if session is not None else ABSENT
        if version not in versions:
            raise Broken(f"session {chain} is version {version}, where {sorted(versions)} are possible")
        if session is not None and session != stored_session(chain, version, len(session.keys)):
            raise Broken(f"a session that nobody has kept so: {session}")


def sessions_dropped(tier: DiskTier, deeds: Sequence[Deed]) -> set[int]:
    """Those that were kept once and are there no more."""
    there = {int(session.name.removeprefix("chat ")) for session in tier.sessions()}
    return set(allowed_sessions(deeds, NEVER)) - there


def check_space(tier: DiskTier) -> None:
    """Nothing is taken that is nobody's, no slot is two blocks', and the counts are those of the index."""
    slots = slots_in_index(tier)
    for slot, count in Counter(slots).items():
        if count > 1:
            raise Broken(f"{count} blocks in slot {slot}")
    space = tier._layout.storage.space if tier._layout.storage is not None else None
    if space is None:
        if slots:
            raise Broken(f"{len(slots)} blocks in a folder without a layout")
        return
    if space.free_count + len(slots) != space.room:
        raise Broken(f"{space.free_count} slots free and {len(slots)} used, of {space.room}")
    if tier.held_blocks != len(slots):
        raise Broken(f"{tier.held_blocks} blocks counted, {len(slots)} in the index")


def slots_in_index(tier: DiskTier) -> list[tuple[int, int]]:
    """Segment and slot of each entry, read past the tier's own reckoning."""
    table = tier._table
    with table._env.begin() as txn:
        rows = list(txn.cursor(db=table._tables["blocks"]))
    entries = [BlockEntry.unpack(name, record) for name, record in rows]
    return [(entry.segment, entry.slot) for entry in entries]


def numbers_of(keys: Sequence[StoredKey], allowed: Collection[int]) -> list[int]:
    numbers = {stored_key(number).key: number for number in allowed}
    found = []
    for key in keys:
        number = numbers.get(key.key)
        if number is None or key != stored_key(number):
            raise Broken(f"a block that nobody has written so: {key}")
        found.append(number)
    if len(set(found)) < len(found):
        raise Broken("a block listed twice")
    return found
