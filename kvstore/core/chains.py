"""What can be asked for a prompt, named by its keys: how much of it is cached. And for it, or for a session's
chain: to be brought up before it is needed, to be kept longer. The leading blocks that are cached are meant.
"""

from array import array

import numpy as np

from kvstore.core.answers import LookupAnswer, PrefetchAnswer, RetainAnswer
from kvstore.core.blocks import Rows
from kvstore.core.bounds import check_chain, check_keys, check_target, check_tenant, check_time_limit
from kvstore.core.calls import Lookup, Prefetch, Retain
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine
from kvstore.core.links import Links
from kvstore.core.memory import Memory
from kvstore.core.sessions import Sessions
from kvstore.core.types import GPU, DomainId, Tier, domain_id

__all__ = ["Chains"]


class Chains:
    """Finds what is meant. Nothing of it is held by these calls."""

    def __init__(self, config: StoreConfig, memory: Memory, links: Links, sessions: Sessions) -> None:
        self._config = config
        self._memory = memory
        self._links = links
        self._sessions = sessions
        # Before a restart: nothing is brought up that was only wished for.
        self.is_closed = False

    def lookup(self, engine: Engine, event: Lookup) -> LookupAnswer:
        """How much is cached, and where."""
        check_tenant(self._config, event.tenant)
        domain = self._domain(engine, event.tenant)
        rows = self._memory.prefix.find_prefix(domain, event.block_keys, engine.pending.get(domain, {}))
        if len(rows) < len(event.block_keys):
            check_keys(event.block_keys)  # Those that were found are good ones.
        best = self._memory.replicas.best_tier(np.array(rows))
        gpu, cpu, disk = np.bincount(best, minlength=len(Tier)).tolist()
        return LookupAnswer(blocks_cached=len(rows), blocks_by_tier=(gpu, cpu, disk))

    def prefetch(self, engine: Engine, event: Prefetch) -> PrefetchAnswer:
        """A wish: what finds no room that nobody needs is let go (`ahead.py`)."""
        check_target(event.target)
        blocks, rows = self._memory.blocks, self._find(engine, event)
        if self.is_closed:
            return PrefetchAnswer(blocks_started=0)
        if event.target is not GPU:
            # What is on the GPU need not be brought nearer.
            rows = rows[~blocks.has_frame(GPU, rows)]
        self._links.ask_ahead(event.target, rows)
        wishes = self._links.ahead.wishes
        started = [row for row in rows.tolist() if row in wishes]
        return PrefetchAnswer(blocks_started=len(started))

    def retain(self, engine: Engine, event: Retain) -> RetainAnswer:
        """As many of the leading blocks as the tenant's budget has room for."""
        check_time_limit(event.ttl_seconds)
        retained, rows = self._memory.retained, self._find(engine, event)
        tenant = self._config.tenants[event.tenant or self._config.default_tenant]
        room = max(0, self._config.retained_blocks_max - retained.count_of(tenant))
        is_new = ~retained.is_retained(rows)
        rows = rows[np.cumsum(is_new) <= room]
        self._memory.blocks.unwanted[rows] = False
        retained.keep(rows, event.ttl_seconds, event.priority, event.time)
        return RetainAnswer(blocks_retained=rows.size)

    def _find(self, engine: Engine, event: Prefetch | Retain) -> Rows:
        check_chain(self._config, event)
        domain = self._domain(engine, event.tenant)
        keys = event.block_keys
        if event.session:
            session = self._sessions.find(domain, event.session)
            keys = session.keys if session is not None else ()
        found: array[int] = self._memory.prefix.find_prefix(domain, keys, {})
        return np.array(found, np.intp)

    def _domain(self, engine: Engine, tenant: str) -> DomainId:
        return domain_id(engine.namespace, self._config.tenants[tenant or self._config.default_tenant])
