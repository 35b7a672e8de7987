"""The simulator's world, for tests that are lists of events."""

from kvstore.sim.world import BLOCK_TOKENS, Moving, World, engine_id, keys_of, make_store, stored_keys, text

__all__ = ["BLOCK_TOKENS", "Moving", "World", "engine_id", "keys_of", "make_store", "stored_keys", "text"]
