"""What an engine can ask for a sequence, such that the model knows what must come of it."""

import random
from collections.abc import Sequence

from kvstore.core.operations import Allocate, Operation
from kvstore.core.types import Activity, Retention, SequenceState, SwapMode
from kvstore.sim import ops
from kvstore.sim.engine import SimEngine
from kvstore.sim.line import Line
from kvstore.sim.ops import activity, allocate, commit, fork, free, swap_in, swap_out
from kvstore.sim.texts import BLOCK_TOKENS, Content, Texts, keys_of

__all__ = ["ask_back", "begin", "commit_full", "free_line", "grow", "in_columns", "preempt", "rest", "split"]


def begin(
    engine: SimEngine,
    tokens: Sequence[int],
    tenant: str,
    *,
    session: str = "",
    priority: int = 0,
    turn: int = 0,
) -> Allocate:
    """A new sequence, found by its keys as far as it is cached."""
    line = Line(engine.take_id(), list(tokens), tenant, engine.space(tenant), session, turn)
    engine.lines[line.id] = line
    return allocate(
        line.id,
        len(tokens),
        keys_of(tokens),
        session=session,
        tenant=tenant,
        priority=priority,
        turn=turn,
    )


def grow(line: Line, more: Sequence[int], known_blocks: int) -> Operation:
    """Room for what it has and for more tokens, once all it has is written."""
    if line.written == len(line.tokens):
        line.tokens += more
    most = min(len(line.table), -(-len(line.tokens) // BLOCK_TOKENS))
    return allocate(line.id, len(line.tokens), known_blocks=min(known_blocks, most))


def in_columns(operations: Sequence[Operation]) -> list[Operation]:
    """The same, with all Allocates that tell no more than a Grow can in one."""
    plain = [each for each in operations if isinstance(each, Allocate) and each == _plain(each)]
    if not plain:
        return list(operations)
    columns = ops.grow(
        [each.sequence for each in plain],
        [each.token_count for each in plain],
        [each.known_blocks for each in plain],
    )
    return [*(each for each in operations if each not in plain), columns]


def _plain(operation: Allocate) -> Allocate:
    return allocate(operation.sequence, operation.token_count, known_blocks=operation.known_blocks)


def commit_full(line: Line, first: int) -> list[Operation]:
    """Publishes the full blocks that are not yet; `first` may name some that are."""
    full = line.written // BLOCK_TOKENS
    if full <= line.committed or line.state is SequenceState.SWAPPING_IN:
        return []
    first = min(first, line.committed)
    line.committed = full
    return [commit(line.id, keys_of(line.tokens[: full * BLOCK_TOKENS])[first:], first)]


def free_line(line: Line, texts: Texts, retention: Retention) -> Operation:
    texts.remember(line.tokens)
    if line.turn:
        texts.end_turn(line.tenant, line.session, line.turn, line.tokens)
    return free(line.id, retention=retention)


def preempt(line: Line, mode: SwapMode) -> Operation:
    line.running = False
    return swap_out(line.id, line.written, mode)


def rest(line: Line, doing: Activity, resume_delay_seconds: float = -1.0) -> Operation:
    line.running = False
    return activity(line.id, doing, line.written, resume_delay_seconds)


def ask_back(line: Line, rng: random.Random) -> Operation:
    if line.is_fresh:
        return allocate(line.id, len(line.tokens))
    if rng.random() < 0.5:
        return swap_in(line.id)
    return activity(line.id, Activity.RUNNING)


def split(engine: SimEngine, line: Line, endings: Sequence[Content]) -> Operation:
    """A fork: each child goes on with an ending of its own."""
    most = engine.world.store.config.gpu_frames * BLOCK_TOKENS
    children: list[int] = []
    for ending in endings:
        child = Line(engine.take_id(), [*line.tokens, *ending], line.tenant, line.space, line.session)
        # A child always fits: it has had no room of its own yet that it could fall back to.
        del child.tokens[max(len(line.tokens), most) :]
        child.written, child.committed = line.written, line.committed
        engine.children[child.id] = child
        children.append(child.id)
    return fork(line.id, *children)
