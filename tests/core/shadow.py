"""The simulator's shadow memory."""

from kvstore.sim.shadow import BLOCK_TOKENS, Content, CopyFrame, ReadTokens, Shadow, Work, WriteTokens

__all__ = ["BLOCK_TOKENS", "Content", "CopyFrame", "ReadTokens", "Shadow", "Work", "WriteTokens"]
