"""A small world around a real Store: links that move bytes, and time.

Every event goes through `World.handle`, which checks all invariants of the store after it, and
that no transfer touches a frame that work of an engine still uses.
"""

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvstore.core.config import StoreConfig
from kvstore.core.effects import Effects, Transfer
from kvstore.core.events import BlocksFound, Event, Tick, TransferEnded
from kvstore.core.invariants import check_invariants
from kvstore.core.store import Store
from kvstore.core.types import BlockKey, EngineId, NamespaceId, StoredKey, TenantId, Tier, WriterId
from kvstore.policy.eviction import Lru
from kvstore.policy.swap import LengthThreshold
from kvstore.sim.shadow import BLOCK_TOKENS, Content, Shadow, Work
from kvstore.sim.wrong import Wrong, expect

__all__ = ["BLOCK_TOKENS", "Moving", "World", "engine_id", "keys_of", "make_store", "stored_keys", "text"]

TENANTS = {"a": TenantId(1), "b": TenantId(2)}


def make_store(
    *,
    drop_tokens_max: int = 8,
    gpu_frames: int = 16,
    cpu_frames: int = 0,
    disk_frames: int = 0,
    engines_max: int = 64,
    sequences_max: int = 65_536,
    operations_max: int = 4_096,
    transfer_blocks_max: int = 32,
) -> Store:
    config = StoreConfig(
        block_tokens=BLOCK_TOKENS,
        gpu_frames=gpu_frames,
        cpu_frames=cpu_frames,
        disk_frames=disk_frames,
        tenants=TENANTS,
        default_tenant="a",
        engines_max=engines_max,
        sequences_max=sequences_max,
        operations_max=operations_max,
        transfer_blocks_max=transfer_blocks_max,
    )
    return Store(config, Lru(), LengthThreshold(drop_tokens_max))


def engine_id(number: int) -> EngineId:
    return EngineId(f"00000000-0000-4000-8000-{number:012d}")


def text(number: int, token_count: int) -> Content:
    """Tokens that no other text has."""
    return tuple(range(number * 1_000_000, number * 1_000_000 + token_count))


def keys_of(tokens: Iterable[int]) -> tuple[BlockKey, ...]:
    """Keys of the full blocks of a text."""
    digest, keys, block = hashlib.sha256(), [], []
    for token in tokens:
        block.append(token)
        if len(block) == BLOCK_TOKENS:
            digest.update(repr(block).encode())
            keys.append(BlockKey(digest.digest()))
            block = []
    return tuple(keys)


def stored_keys(tokens: Content, *, tenant: int = 1, namespace: int = 1) -> list[StoredKey]:
    """The full blocks of a text as the disk names them, written by writer 7."""
    keys = keys_of(tokens)
    return [
        StoredKey(
            namespace=NamespaceId(namespace),
            tenant=TenantId(tenant),
            key=key,
            parent=parent,
            writer=WriterId(7),
        )
        for key, parent in zip(keys, (BlockKey(b""), *keys), strict=False)
    ]


@dataclass(slots=True, eq=False)
class Moving:
    """A transfer under way. Its bytes move at some moment between its start and its end."""

    transfer: Transfer
    failed: set[int] = field(default_factory=set)
    done: bool = False


class World:
    """One store, the bytes behind it and its clock, driven by a seed."""

    def __init__(self, store: Store, seed: int = 0, fail_share: float = 0.0) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.fail_share = fail_share
        self.shadow = Shadow()
        self.time = 100.0
        self.under_way: list[Moving] = []
        # Work that engines have sent to their GPU stream and that has not run yet, by engine.
        self.pending: dict[int, list[tuple[int, Work]]] = {}

    def handle(self, event: Event) -> Effects:
        effects = self.store.handle(event)
        for delete in effects.deletes:
            self.shadow.delete(delete)
        for transfer in effects.transfers:
            self._start(transfer)
        check_invariants(self.store)
        return effects

    def find(self, *texts: Content, tenant: int = 1, namespace: int = 1) -> None:
        """The store starts and finds these texts on disk, the one used longest ago first."""
        found: dict[StoredKey, None] = {}
        for tokens in texts:
            for place, key in enumerate(stored_keys(tokens, tenant=tenant, namespace=namespace)):
                found[key] = None
                self.shadow.put(key, tokens[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS])
        self.handle(BlocksFound(time=self.time, blocks=tuple(found)))

    # ------------------------------------------------------------------------ transfers

    def _start(self, transfer: Transfer) -> None:
        self._check_unused(transfer)
        moving = Moving(transfer)
        count = len(transfer.source_frames)
        if self.random.random() < self.fail_share:
            # A write to disk fails whole.
            whole = transfer.target is Tier.DISK
            moving.failed = set(range(count)) if whole else {self.random.randrange(count)}
        if self.random.random() < 0.5:
            self._move(moving)
        self.under_way.append(moving)

    def _move(self, moving: Moving) -> None:
        if not moving.done:
            if moving.transfer.source is Tier.DISK:
                for place in moving.failed:
                    self.shadow.spoil(moving.transfer.keys[place])
            self.shadow.transfer(moving.transfer, moving.failed)
            moving.done = True

    def end(self, moving: Moving, failed: Iterable[int] | None = None) -> Effects:
        """Ends one transfer, well or as `failed` says."""
        self.under_way.remove(moving)
        if failed is not None:
            moving.failed, moving.done = set(failed), False
        self._move(moving)
        ended = TransferEnded(
            time=self.time, transfer=moving.transfer.id, failed=tuple(sorted(moving.failed))
        )
        return self.handle(ended)

    def end_one(self) -> None:
        self.end(self.random.choice(self.under_way))

    def drain(self) -> None:
        """All that is under way ends, and what follows from it."""
        for _ in range(100_000):
            if not self.under_way:
                return
            self.end_one()
        raise Wrong("transfers go on and on")

    def moving(self, source: Tier, target: Tier) -> list[Moving]:
        return [
            each
            for each in self.under_way
            if (each.transfer.source, each.transfer.target) == (source, target)
        ]

    def _check_unused(self, transfer: Transfer) -> None:
        """Pending work may read what is copied down, and may do nothing with what is filled."""
        for work in self._pending_work():
            if transfer.source is Tier.GPU:
                clash = set(transfer.source_frames) & set(work.frames_written())
                expect(not clash, f"frames {clash} are copied while a kernel has still to write them")
            if transfer.target is Tier.GPU:
                clash = set(transfer.target_frames) & {*work.frames_read(), *work.frames_written()}
                expect(not clash, f"frames {clash} are filled while a kernel has still to use them")

    def _pending_work(self) -> list[Work]:
        return [work for steps in self.pending.values() for _, work in steps]

    # ------------------------------------------------------------------ the GPU of engines

    def enqueue(self, engine: int, step: int, work: Work) -> None:
        """Work of a step, to run when the engine's stream comes to it."""
        for moving in self.under_way:
            transfer = moving.transfer
            if transfer.source is Tier.GPU:
                clash = set(transfer.source_frames) & set(work.frames_written())
                expect(not clash, f"frames {clash} were granted while they are copied")
            if transfer.target is Tier.GPU:
                clash = set(transfer.target_frames) & {*work.frames_read(), *work.frames_written()}
                expect(not clash, f"frames {clash} were granted while they are filled")
        self.pending.setdefault(engine, []).append((step, work))

    def execute(self, engine: int, up_to: int) -> None:
        """The stream of an engine runs the work of its steps up to this one, in order."""
        steps = self.pending.get(engine, [])
        while steps and steps[0][0] <= up_to:
            self.shadow.execute(steps.pop(0)[1])

    # ------------------------------------------------------------------------------ rest

    def tick(self, seconds: float = 0.1) -> Effects:
        self.time += seconds
        return self.handle(Tick(time=self.time))

    def free_frames(self) -> tuple[int, int, int]:
        gpu, cpu, disk = (pool.free_count for pool in self.store.memory.pools)
        return gpu, cpu, disk

    def check_nothing_held(self) -> None:
        """No engine is left: every frame is free or holds cached content that can be given up."""
        usage = self.store.usage()
        expect(not usage.engines, f"engines are left: {usage.engines}")
        for used in usage.tiers:
            expect(
                used.frames_free + used.frames_cached == used.frames_total,
                f"frames are held by nobody: {used}",
            )
            expect(not used.frames_pinned, f"frames are held by nobody: {used}")

    def check_evictable(self) -> None:
        """What is cached can be evicted to the last block, where the tier above holds nothing."""
        memory = self.store.memory
        for tier, pool in zip(Tier, memory.pools, strict=True):
            expect(memory.make_room(tier, pool.frame_count), f"{tier.name} can't be emptied")
            expect(pool.free_count == pool.frame_count, f"{tier.name} is not empty")
            check_invariants(self.store)
