"""The simulator's shadow memory, for tests that are lists of events."""

from kvstore.sim.shadow import Shadow
from kvstore.sim.texts import BLOCK_TOKENS, Content
from kvstore.sim.work import CopyFrame, ReadTokens, Work, WriteTokens

__all__ = ["BLOCK_TOKENS", "Content", "CopyFrame", "ReadTokens", "Shadow", "Work", "WriteTokens"]
