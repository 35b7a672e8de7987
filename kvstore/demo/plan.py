"""The work of the demo, and sizes that make it pass through every tier by design, not by luck.

Four conversations of three turns each. A first prompt fills 70 blocks, a second 82, a third 94; an answer
adds two more at most. Nothing here depends on how fast the machine is: prompts have exactly these lengths,
waves follow one another, and between two waves the service is let to come to rest.

Wave by wave (GPU: 212 frames; CPU: 272, of which 16 are kept for passage; disk: room for all):

1. A, B and C at once. Their prompts fit (210), but when all three have their first token each needs one more
   block, and two frames are left: the youngest, C, is swapped out. It comes back when another has ended.
2. C was the last to end: its 71 blocks are still on the GPU when it goes on. With D, which begins, it takes
   156 of the 212 frames, so of A and B at most 56 blocks are left there. The CPU tier holds C and D (156),
   and 100 blocks of A and B.
3. A and B go on: at least 44 of their blocks can come from nowhere but the CPU tier.
4. The engine is killed while it answers A and D, and another one does these turns again: their prompts are
   found where the dead engine has left them.
5. After a restart of the service only the disk is left: B and C load from there,
6. and so does D.
"""

from dataclasses import dataclass

__all__ = [
    "ANSWER_TOKENS",
    "BLOCK_TOKENS",
    "CPU_FRAMES",
    "DISK_FRAMES",
    "GPU_FRAMES",
    "PLAN",
    "PROMPT_TOKENS",
    "SESSIONS",
    "Wave",
]

BLOCK_TOKENS = 16
SESSIONS = 4
# Of the first turn, the second, the third.
PROMPT_TOKENS = (70 * BLOCK_TOKENS, 82 * BLOCK_TOKENS, 94 * BLOCK_TOKENS)
ANSWER_TOKENS = 24

GPU_FRAMES = 212
CPU_FRAMES = 272
# Everything fits: four conversations end with 96 blocks each.
DISK_FRAMES = 1024

A, B, C, D = range(SESSIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Turns that run at once: pairs of session and turn number, in the order in which they are asked for."""

    title: str
    turns: tuple[tuple[int, int], ...]
    # The service is stopped and started again before.
    restarts_service: bool = False
    # The engine is killed when each answer has so many tokens; 0: it lives.
    kills_engine_at: int = 0


PLAN = (
    Wave(title="three conversations at once, memory for less", turns=((A, 1), (B, 1), (C, 1))),
    Wave(title="one goes on, another begins", turns=((C, 2), (D, 1))),
    Wave(title="the first two go on, no longer on the GPU", turns=((A, 2), (B, 2))),
    Wave(title="SIGKILL of the engine while it answers", turns=((A, 3), (D, 2)), kills_engine_at=2),
    Wave(title="restart of the service", turns=((B, 3), (C, 3)), restarts_service=True),
    Wave(title="the last turn", turns=((D, 3),)),
)
