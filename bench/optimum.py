"""The best that any policy could do on a trace (Belady with bypass), for one tier.

What is read again latest goes first; of the blocks of one request, which are all read again together, the
deepest. A block need not be cached at all.
"""

import heapq

from bench.traces import Trace

__all__ = ["optimal_hit_rate"]


def optimal_hit_rate(trace: Trace, capacity: int) -> float:
    """In blocks of the capacity's size, behind an unbroken prefix."""
    never = len(trace.requests)
    upcoming = _next_uses(trace)
    # By block: when it is read again, and how deep it is.
    cached: dict[int, tuple[int, int]] = {}
    heap: list[tuple[int, int, int]] = []
    hits = 0
    for request, next_uses in zip(trace.requests, upcoming, strict=True):
        blocks = request.blocks.tolist()
        hits += next((depth for depth, block in enumerate(blocks) if block not in cached), len(blocks))
        for depth, (block, use) in enumerate(zip(blocks, next_uses, strict=True)):
            cached.pop(block, None)
            if use != never:
                cached[block] = use, depth
                heapq.heappush(heap, (-use, -depth, block))
        while len(cached) > capacity:
            use, depth, block = heapq.heappop(heap)
            if cached.get(block) == (-use, -depth):
                del cached[block]
    return hits / trace.read_count if trace.read_count else 0.0


def _next_uses(trace: Trace) -> list[list[int]]:
    """Of each request's blocks: the request that reads them next, or the number of all."""
    never = len(trace.requests)
    known: dict[int, int] = {}
    uses = []
    for index in range(never - 1, -1, -1):
        blocks = trace.requests[index].blocks.tolist()
        uses.append([known.get(block, never) for block in blocks])
        known |= dict.fromkeys(blocks, index)
    return uses[::-1]
