"""Who goes on from whom: as the trace says, or by comparing prompts."""

from collections.abc import Iterable, Iterator

__all__ = ["NOBODY", "infer_previous", "named_previous"]

NOBODY = -1


def named_previous(sessions: Iterable[str]) -> Iterator[int]:
    """Of each request, in the order of their times, the number of the last one of the same session. Requests
    without a session stand alone."""
    last: dict[str, int] = {}
    for number, session in enumerate(sessions):
        if not session:
            yield NOBODY
            continue
        yield last.get(session, NOBODY)
        last[session] = number


def infer_previous(prompts: Iterable[tuple[int, ...]]) -> Iterator[int]:
    """The same where no sessions are named, of prompts as numbers of their full blocks, equal where all up to
    their ends is.

    A request goes on from the latest one whose whole prompt is the beginning of its own, if that had a last
    block of its own: what is only a shared head, a system prompt, ties nobody together. Each is gone on from
    once; who does so later begins a conversation of his own. On traces that do name sessions this finds nine
    of ten turns, and wrong ones hardly ever (tests/planner/test_workload.py).
    """
    # By the last block of a prompt that nobody has gone on from yet: whose it is.
    ends: dict[int, int] = {}
    seen: set[int] = set()
    for number, prompt in enumerate(prompts):
        end = next((block for block in reversed(prompt) if block in ends), None)
        previous = NOBODY if end is None else ends.pop(end)
        if prompt and (previous != NOBODY or prompt[-1] not in seen):
            ends[prompt[-1]] = number
        seen.update(prompt)
        yield previous
