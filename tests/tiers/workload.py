"""What a busy disk tier is asked to do, by seed: batches written, stored again, deleted, read; near its cap.

Blocks hang in chains, a chain has a hundred numbers, and what is deleted is the end of a chain, as the core
does it. Now and then several batches of a chain are under way at once, as their mover has them. Whatever is
begun and answered is told to `note`, so that afterwards can be said what has to be there (promises.py).
"""

import random
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from kvstore.tiers.disk import DiskTier, DiskWriteFailed
from kvstore.tiers.disk_tickets import Ticket
from tests.tiers.promises import ABSENT, CHAIN, Broken, Deed, session_name, stored_key, stored_session
from tests.tiers.sized import Sizes, find_versions

__all__ = ["Note", "Silent", "Workload"]

BATCH_MAX = 6
# Under way at once.
WRITES_MAX = 3


class Note(Protocol):
    """Told of a deed before it is asked for and when it is answered."""

    def begin(self, deed: Deed) -> None: ...

    def end(self, deed: Deed) -> None: ...


class Silent:
    def begin(self, deed: Deed) -> None:
        pass

    def end(self, deed: Deed) -> None:
        pass


class Workload:
    """`blocks` are those that are there, with their versions; versions from `next_version` on are new.

    `part` of `parts`: which share of the chains and of the room is this one's, where several work at once.
    """

    def __init__(
        self,
        tier: DiskTier,
        sizes: Sizes,
        seed: int,
        note: Note,
        blocks: Mapping[int, int],
        next_version: int,
        *,
        part: int = 0,
        parts: int = 1,
    ) -> None:
        self.tier = tier
        self._part, self._parts = part, parts
        self.blocks = dict(blocks)
        self.next_version = next_version
        self.sizes = sizes
        self._note = note
        self._chance = random.Random(seed)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self, *, reads: bool = True) -> None:
        writes = (self.write_new, self.write_several, self.write_again)
        kinds = (*writes, self.delete_some, self.keep_some, self.read_some)
        self._chance.choices(kinds, (30, 15, 15, 20, 10, 15 if reads else 0))[0]()

    def write_new(self) -> None:
        """A chain begins or grows, by a batch; room is made first, as the core does."""
        count = self._chance.randint(1, BATCH_MAX)
        chains = sorted({number // CHAIN for number in self.blocks})
        grow = chains and self._chance.random() < 0.6
        chain = (
            self._chance.choice(chains)
            if grow
            else max(chains, default=self._part - self._parts) + self._parts
        )
        first = 1 + max(
            (number for number in self.blocks if number // CHAIN == chain), default=chain * CHAIN - 1
        )
        count = min(count, (chain + 1) * CHAIN - first)
        if count == 0:
            return
        if self._make_room(count, {chain} if grow else set()):
            self._write(range(first, first + count))

    def write_several(self) -> None:
        """A chain begins, by batches that hang on one another and are under way together."""
        sizes = [self._chance.randint(1, 3) for _ in range(self._chance.randint(2, WRITES_MAX))]
        if not self._make_room(sum(sizes), set()):
            return
        chains = {number // CHAIN for number in self.blocks}
        first = CHAIN * (max(chains, default=self._part - self._parts) + self._parts)
        deeds: list[Deed] = []
        for size in sizes:
            blocks = {first + place: self.next_version + place for place in range(size)}
            deeds.append(Deed("write", blocks, after=deeds[-1] if deeds else None))
            first, self.next_version = first + size, self.next_version + size
        for deed in deeds:
            self._note.begin(deed)
        # All before the first is asked for: of one that has ended already, a later one knows nothing.
        tickets = [self.tier.tickets.take() for _ in deeds]
        with ThreadPoolExecutor(len(deeds)) as threads:
            for done in [threads.submit(self._ask, *each) for each in zip(deeds, tickets, strict=True)]:
                done.result()
        for deed in deeds:
            if deed.good and deed.after is not None and not deed.after.good:
                raise Broken(f"{deed} is stored, and not {deed.after}, which was begun before it")
            if deed.good:
                self.blocks |= deed.blocks

    def write_again(self) -> None:
        """Blocks that are there, with other bytes: in truth they would be the same."""
        count = self._chance.randint(1, 3)
        if self._make_room(count, set()) and len(self.blocks) >= count:
            self._write(sorted(self._chance.sample(sorted(self.blocks), count)))

    def delete_some(self, spare: Collection[int] = ()) -> bool:
        """Ends of chains; False where there is nothing to delete."""
        chains = sorted({number // CHAIN for number in self.blocks}.difference(spare))
        if not chains:
            return False
        doomed: list[int] = []
        for chain in self._chance.sample(chains, min(len(chains), self._chance.randint(1, 2))):
            own = sorted(number for number in self.blocks if number // CHAIN == chain)
            doomed += own[-self._chance.randint(1, len(own)) :]
        deed = Deed("delete", dict.fromkeys(doomed, ABSENT))
        self._note.begin(deed)
        self.tier.delete([stored_key(number) for number in reversed(doomed)])
        self._note.end(deed)
        for number in doomed:
            del self.blocks[number]
        return True

    def keep_some(self) -> None:
        """Sessions for some chains, as long as the chains are. Or they are forgotten; the blocks are not."""
        chains = sorted({number // CHAIN for number in self.blocks})
        for chain in self._chance.sample(chains, min(len(chains), 2)):
            version, self.next_version = self.next_version, self.next_version + 1
            keeps = self._chance.random() < 0.8
            deed = Deed("keep" if keeps else "forget", {chain: version if keeps else ABSENT})
            self._note.begin(deed)
            was_degraded = self.tier.degraded
            if keeps:
                length = sum(number // CHAIN == chain for number in self.blocks)
                self.tier.keep_sessions([stored_session(chain, version, length)])
            else:
                self.tier.forget_sessions([session_name(chain)])
            # While the tier is degraded a session waits for the next write that succeeds.
            deed.good = not (was_degraded or self.tier.degraded)
            self._note.end(deed)
        used = self._chance.sample(sorted(self.blocks), min(3, len(self.blocks)))
        self.tier.note_uses([stored_key(number) for number in used])

    def read_some(self) -> None:
        if self.blocks:
            numbers = self._chance.sample(sorted(self.blocks), min(len(self.blocks), 4))
            found = find_versions(
                self.tier, self.sizes, {number: {self.blocks[number]} for number in numbers}
            )
            if found != {number: self.blocks[number] for number in numbers}:
                raise Broken(f"read {found} of {numbers}, where {self.blocks} were written")

    @property
    def capacity_blocks(self) -> int:
        return self.tier.capacity_blocks(self.sizes.block_bytes, self.sizes.ranks) // self._parts

    def _make_room(self, count: int, spare: Collection[int]) -> bool:
        """Also for blocks that are stored again: the old bytes go only when the new ones are there."""
        while len(self.blocks) + count > self.capacity_blocks:
            if not self.delete_some(spare):
                return False
        return True

    def _write(self, numbers: Sequence[int]) -> None:
        deed = Deed("write", {})
        for number in numbers:
            deed.blocks[number] = self.next_version
            self.next_version += 1
        self._note.begin(deed)
        self._ask(deed, self.tier.tickets.take())
        if deed.good:
            self.blocks |= deed.blocks

    def _ask(self, deed: Deed, ticket: Ticket) -> None:
        keys, payloads = [stored_key(number) for number in deed.blocks], self.sizes.filled(deed.blocks)
        try:
            with ticket:
                self.tier.write(keys, payloads, ticket=ticket)
        except DiskWriteFailed:
            deed.good = False
        self._note.end(deed)
