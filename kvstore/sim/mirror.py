"""Who watches a store from its beginning: all that is told, applied in order, must be the index by tier."""

from kvstore.core.effects import Effects
from kvstore.core.invariants import Found, found_by_tier
from kvstore.core.notices import BlocksRemoved, BlocksStored
from kvstore.core.store import Store
from kvstore.sim.wrong import expect

__all__ = ["Mirror"]


class Mirror:
    def __init__(self) -> None:
        self.found: set[Found] = set()
        self.revision = 0

    def follow(self, store: Store, effects: Effects) -> None:
        """Takes in what came of an event, and compares."""
        for each in effects.happened:
            self.revision += 1
            expect(
                each.revision == self.revision, f"revision {each.revision} is told after {self.revision - 1}"
            )
            if isinstance(each, BlocksStored | BlocksRemoved):
                blocks = {(each.tier, each.namespace, each.tenant, key) for key in each.keys}
                expect(len(blocks) == len(each.keys), "a block is told twice in one event")
                if isinstance(each, BlocksStored):
                    expect(not blocks & self.found, "a block is told as stored that was there")
                    self.found |= blocks
                else:
                    expect(blocks <= self.found, "a block is told as removed that was not there")
                    self.found -= blocks
        expect(self.revision == store.revision, f"revision {store.revision} was not told")
        expect(self.found == found_by_tier(store), "who watches has another index than the store")
