"""What an engine asks about cached content: whether it is there, that it be brought nearer, that it stay."""

from kvstore.core.answers import LookupAnswer, PrefetchAnswer, RetainAnswer
from kvstore.core.calls import Lookup, Prefetch, Retain
from kvstore.core.types import Tier
from kvstore.sim.engine import SimEngine
from kvstore.sim.texts import BLOCK_TOKENS, Content, keys_of
from kvstore.sim.work import Publish, Space
from kvstore.sim.wrong import Wrong, expect

__all__ = ["lookup", "prefetch", "retain"]


def lookup(engine: SimEngine, tokens: Content, tenant: str) -> None:
    event = Lookup(time=engine.world.time, engine=engine.id, block_keys=keys_of(tokens), tenant=tenant)
    answer = engine.world.handle(event).answer
    if not isinstance(answer, LookupAnswer):
        raise Wrong(f"engine {engine.number}: Lookup is answered with {answer}")
    space = engine.space(tenant)
    for place in range(answer.blocks_cached):
        block = tokens[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS]
        committed = engine.world.shadow.is_committed(space, block)
        known = committed or _has_announced(engine, space, block)
        expect(known, f"{space}: a Lookup finds tokens {list(block)}, which nobody has committed")


def prefetch(engine: SimEngine, tokens: Content, session: str, target: Tier, tenant: str) -> None:
    keys = () if session else keys_of(tokens)
    event = Prefetch(
        time=engine.world.time,
        engine=engine.id,
        block_keys=keys,
        session=session,
        target=target,
        tenant=tenant,
    )
    answer = engine.world.handle(event).answer
    most = len(keys) if keys else engine.world.store.config.session_keys_max
    good = isinstance(answer, PrefetchAnswer) and answer.blocks_started <= most
    expect(good, f"engine {engine.number}: Prefetch is answered with {answer}")


def retain(
    engine: SimEngine, tokens: Content, session: str, seconds: float, priority: int, tenant: str
) -> None:
    keys = () if session else keys_of(tokens)
    event = Retain(
        time=engine.world.time,
        engine=engine.id,
        block_keys=keys,
        session=session,
        ttl_seconds=seconds,
        priority=priority,
        tenant=tenant,
    )
    answer = engine.world.handle(event).answer
    most = len(keys) if keys else engine.world.store.config.session_keys_max
    good = isinstance(answer, RetainAnswer) and answer.blocks_retained <= most
    expect(good, f"engine {engine.number}: Retain is answered with {answer}")


def _has_announced(engine: SimEngine, space: Space, block: Content) -> bool:
    """It has committed the block itself, and the work that fills it has not run yet."""
    works = [work for _, work in engine.world.pending.get(engine.number, ()) if isinstance(work, Publish)]
    return any(work.space == space and work.holds(block) for work in works)
