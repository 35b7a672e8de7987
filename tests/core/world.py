"""The simulator's world, for tests that are lists of events."""

from kvstore.sim.carrying import Moving
from kvstore.sim.stores import make_store
from kvstore.sim.texts import BLOCK_TOKENS, engine_id, keys_of, stored_keys, text
from kvstore.sim.world import World

__all__ = ["BLOCK_TOKENS", "Moving", "World", "engine_id", "keys_of", "make_store", "stored_keys", "text"]
