"""Allocate and swap IN: from what is asked to frames, and from frames to answers."""

from array import array

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvstore.core.admission import Admission, Precedence, Request
from kvstore.core.blocks import all_of, any_of, concat
from kvstore.core.config import StoreConfig
from kvstore.core.effects import Admitted
from kvstore.core.engines import Engine
from kvstore.core.leaving import Leaving
from kvstore.core.memory import Memory
from kvstore.core.operations import Allocate
from kvstore.core.ports import Verdict
from kvstore.core.returning import Returning
from kvstore.core.sequences import Sequence, session_owner
from kvstore.core.swaps import Swaps
from kvstore.core.swaps_in import Arrival
from kvstore.core.tails import Tails
from kvstore.core.types import (
    DROPPED,
    GPU,
    LATER,
    NEVER,
    OK,
    RESIDENT,
    RUNNING,
    SWAPPED,
    SWAPPING_IN,
    SWAPPING_OUT,
    Outcome,
    Tier,
    blocks_for_tokens,
    domain_id,
)

__all__ = ["Asked", "Granting"]

_COMING = (RESIDENT, SWAPPING_IN)


class Asked(Struct, eq=False):
    """One Allocate or swap IN on its way to an answer."""

    # None: a prompt that can never fit. No sequence was made.
    sequence: Sequence | None
    token_count: int
    known_blocks: int = 0
    # What has to be taken for it; None: nothing.
    request: Request | None = None
    outcome: Outcome = LATER
    frames_short: int = 0
    # A swap IN of what runs already: all that its engine has written is valid.
    runs: bool = False


class Granting:
    """Plans what sequences need, has it granted, and gives it to them."""

    def __init__(
        self,
        config: StoreConfig,
        memory: Memory,
        swaps: Swaps,
        admission: Admission,
        leaving: Leaving,
        returning: Returning,
    ) -> None:
        self._config = config
        self._memory = memory
        self._swaps = swaps
        self._admission = admission
        self._leaving = leaving
        self._returning = returning
        self._lone_sequences = 0
        # Sequences that got their first frames with this event.
        self.admitted: list[Admitted] = []

    # ---------------------------------------------------------------------- planning

    def ask_allocate(self, engine: Engine, operation: Allocate) -> Asked:
        """What an Allocate needs; makes the sequence if it is new and could ever fit."""
        sequence, tokens = engine.sequences.get(operation.sequence), operation.token_count
        fits = blocks_for_tokens(tokens, self._config.block_tokens) <= self._config.gpu_frames
        if sequence is None and fits:
            sequence = self._create(engine, operation)
        asked = Asked(sequence, tokens, operation.known_blocks)
        if sequence is None or not fits:
            asked.outcome = NEVER
        elif sequence.state is RESIDENT:
            asked.request = self._plan_growth(sequence, tokens)
            if asked.request is None:
                asked.outcome = OK
                sequence.token_count = max(sequence.token_count, tokens)
        elif sequence.state is DROPPED:
            # Frames that the engine knew are not these.
            asked.known_blocks = 0
            sequence.token_count = max(sequence.token_count, tokens)
            if self._admission.is_closed and not sequence.begun_once:
                # LATER, and nothing is short: to preempt others would not help.
                return asked
            asked.request = self._plan_prefix(engine, sequence, Precedence.NEW)
        elif sequence.state is SWAPPING_IN and tokens <= sequence.token_count:
            asked.outcome = OK
        return asked

    def ask_in(self, engine: Engine, sequence: Sequence) -> Asked:
        """What a sequence needs to come back to the GPU."""
        asked = Asked(sequence, sequence.token_count)
        told = sequence not in self._leaving.idle and sequence.id not in engine.moved
        asked.runs = sequence.state is RESIDENT and told
        if sequence.state is SWAPPING_OUT:
            self._swaps.out.cancel(sequence)
        if sequence.state in _COMING:
            asked.outcome = OK
        elif sequence.state is SWAPPED:
            asked.request = self._plan_return(sequence)
        else:
            asked.request = self._plan_prefix(engine, sequence, Precedence.RETURN)
        return asked

    def _create(self, engine: Engine, operation: Allocate) -> Sequence:
        config = self._config
        domain = domain_id(engine.namespace, config.tenants[operation.tenant or config.default_tenant])
        self._lone_sequences += 1
        session = operation.session
        sequence = Sequence(
            engine=engine.id,
            id=operation.sequence,
            domain=domain,
            session=session,
            turn=operation.turn,
            priority=operation.priority,
            owner=session_owner(domain, session) if session else -self._lone_sequences,
            keys=list(operation.block_keys),
            token_count=operation.token_count,
            prompt_tokens=operation.token_count,
        )
        engine.sequences[operation.sequence] = sequence
        self._memory.decisions.name(domain, sequence.owner, session)
        return sequence

    def _plan_growth(self, sequence: Sequence, token_count: int) -> Request | None:
        """New blocks at the end, and one in the place of a part-filled last one that others share."""
        size = self._config.block_tokens
        fresh = blocks_for_tokens(token_count, size) - len(sequence.rows)
        if sequence.forked:
            fresh = max(fresh, 0) + 1
        return Request(sequence, Precedence.GROW, fresh=fresh) if fresh > 0 else None

    def _plan_return(self, sequence: Sequence) -> Request:
        """As much of a swapped sequence as is worth loading, and new blocks behind it."""
        room = blocks_for_tokens(sequence.token_count, self._config.block_tokens)
        verdict = self._returning.weigh(sequence.rows, sequence.filled_tokens)
        held = sequence.rows if verdict is None else sequence.rows[: verdict.blocks]
        return Request(sequence, Precedence.RETURN, held=held, fresh=room - len(held), verdict=verdict)

    def _plan_prefix(self, engine: Engine, sequence: Sequence, precedence: Precedence) -> Request:
        """The cached prefix and new blocks behind it. At least one token is always computed."""
        size = self._config.block_tokens
        usable = (sequence.token_count - 1) // size
        pending = engine.pending.get(sequence.domain, {})
        keys = sequence.keys[:usable]

        def find() -> "tuple[array[int], Verdict | None]":
            found = self._memory.prefix.find_prefix(sequence.domain, keys, pending)
            verdict = self._returning.weigh(found, len(found) * size)
            return (found, None) if verdict is None else (found[: verdict.blocks], verdict)

        request = Request(
            sequence, precedence, fresh=blocks_for_tokens(sequence.token_count, size), find=find
        )
        request.look_again()
        return request

    # ---------------------------------------------------------------------- granting

    def grant(self, asked: list[Asked], time: float) -> list[Asked]:
        """Has all requests granted that can be; returns those that wait, with what they lack."""
        requests = [each.request for each in asked if each.request]
        waiting = self._admission.grant(requests, time) if requests else []
        for each in asked:
            if each.request:
                each.outcome = OK
        if not waiting:
            return []
        by_request = {each.request: each for each in asked}
        late = [by_request[request] for request in waiting]
        for each in late:
            each.outcome = LATER
        return late

    def apply(self, asked: list[Asked], tails: Tails) -> None:
        """Gives granted frames to their sequences."""
        arriving: list[Request] = []
        for each in asked:
            sequence, request = each.sequence, each.request
            if sequence is None or each.outcome is not OK:
                continue
            # OK means that the engine runs it.
            sequence.activity = RUNNING
            if self._leaving.idle:
                self._leaving.idle.pop(sequence, None)
            if request:
                if request.precedence is Precedence.GROW:
                    self._grow(each, sequence, request.granted, tails)
                else:
                    arriving.append(request)
                sequence.token_count = max(sequence.token_count, each.token_count)
        if arriving:
            self._arrive(arriving)

    def _arrive(self, requests: list[Request]) -> None:
        beginning = [each for each in requests if each.sequence.state is DROPPED]
        for request in beginning:
            held, sequence = len(request.held), request.sequence
            sequence.committed, sequence.filled_tokens = held, held * self._config.block_tokens
            sequence.found_tokens = (0, 0, 0)
            sequence.begun_once = True
        for request in requests:
            sequence = request.sequence
            if sequence.state is SWAPPED and len(request.held) < len(sequence.rows):
                self._swaps.shorten(sequence, len(request.held))
            if request.verdict is not None:
                self._returning.note(sequence, request.verdict)
            # Of a swapped one a Forget may have taken a part.
            kept = sequence.filled_tokens // self._config.block_tokens
            sequence.committed = min(sequence.committed, kept)
        hits = [request for request in beginning if request.held]
        if hits:
            self._note_hits(hits)
        for request in beginning:
            if not request.sequence.admitted:
                self._note_admitted(request.sequence)
        self._swaps.into.start([Arrival(each.sequence, each.held, each.granted) for each in requests])

    def _note_admitted(self, sequence: Sequence) -> None:
        sequence.admitted = True
        size = self._config.block_tokens
        gpu, cpu, disk = sequence.found_tokens
        tier_blocks = gpu // size, cpu // size, disk // size
        queried = min(len(sequence.keys), (sequence.token_count - 1) // size)
        self.admitted.append(Admitted(sequence=sequence.id, blocks_queried=queried, tier_blocks=tier_blocks))
        self._memory.regret.count(sequence.domain, sequence.keys, sum(tier_blocks), queried)

    def _grow(self, asked: Asked, sequence: Sequence, fresh: "array[int]", tails: Tails) -> None:
        if sequence.forked:
            if tails.split(sequence, fresh[0]):
                asked.known_blocks = min(asked.known_blocks, len(sequence.rows) - 1)
            fresh = fresh[1:]
        sequence.rows.extend(fresh)

    def _note_hits(self, requests: list[Request]) -> None:
        """Who uses which cached block, and where its best copy was: one look for the whole step."""
        blocks, size = self._memory.blocks, self._config.block_tokens
        rows = concat([request.held for request in requests])
        counts = [len(request.held) for request in requests]
        owners: NDArray[np.int64] | int = requests[0].sequence.owner
        if len(requests) > 1:
            owners = np.repeat([request.sequence.owner for request in requests], counts)
        blocks.reused[rows] = True
        blocks.unwanted[rows] = False
        if self._config.disk_frames:
            self._memory.recency.note(rows)
        if self._memory.retained.has_any:
            self._memory.retained.renew(rows, self._memory.now)
        others = blocks.owner[rows] != owners
        if any_of(others):
            blocks.shared[rows[others]] = True
        all_on_gpu = all_of(blocks.valid[GPU][rows])
        tiers = [] if all_on_gpu else self._memory.replicas.best_tier(rows).tolist()
        begin = 0
        for request, count in zip(requests, counts, strict=True):
            gpu, cpu, disk = count, 0, 0
            if not all_on_gpu:
                mine = tiers[begin : begin + count]
                gpu, cpu, disk = (mine.count(tier) for tier in Tier)
                begin += count
            request.sequence.found_tokens = (gpu * size, cpu * size, disk * size)
