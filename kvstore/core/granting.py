"""Allocate and swap IN: from what is asked to frames, and from frames to answers."""

from array import array
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np

from kvstore.core.admission import Admission, Request, Urgency
from kvstore.core.blocks import concat
from kvstore.core.config import StoreConfig
from kvstore.core.effects import AllocateResult, FrameCopy, SwapResult
from kvstore.core.engines import Engine, Release
from kvstore.core.events import Allocate
from kvstore.core.memory import Memory
from kvstore.core.prefix import domain_id
from kvstore.core.sequences import Sequence
from kvstore.core.settling import session_owner
from kvstore.core.swaps import Swaps
from kvstore.core.types import (
    BlockRow,
    Frame,
    Outcome,
    Retention,
    SequenceState,
    StepNumber,
    Tier,
    blocks_for_tokens,
)

__all__ = ["Asked", "Copies", "Granting"]

_COMING = (SequenceState.RESIDENT, SequenceState.SWAPPING_IN)


@dataclass(slots=True, eq=False)
class Asked:
    """One Allocate or swap IN on its way to an answer."""

    # None: a prompt that can never fit. No sequence was made.
    sequence: Sequence | None
    token_count: int
    known_blocks: int = 0
    # What has to be taken for it; None: nothing.
    request: Request | None = None
    outcome: Outcome = Outcome.LATER
    frames_short: int = 0


@dataclass(slots=True)
class Copies:
    """Tails that got frames of their own: old blocks and new ones."""

    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


class Granting:
    """Plans what sequences need, has it granted, and gives it to them."""

    def __init__(self, config: StoreConfig, memory: Memory, swaps: Swaps, admission: Admission) -> None:
        self._config = config
        self._memory = memory
        self._swaps = swaps
        self._admission = admission
        self._lone_sequences = 0

    # ---------------------------------------------------------------------- planning

    def ask_allocate(self, engine: Engine, operation: Allocate) -> Asked:
        """What an Allocate needs; makes the sequence if it is new and could ever fit."""
        size = self._config.block_tokens
        sequence = engine.sequences.get(operation.sequence)
        fits = blocks_for_tokens(operation.token_count, size) <= self._config.gpu_frames
        if sequence is None and fits:
            sequence = self._create(engine, operation)
        asked = Asked(sequence, operation.token_count, operation.known_blocks)
        if sequence is None or not fits:
            asked.outcome = Outcome.NEVER
        elif sequence.state is SequenceState.RESIDENT:
            asked.request = self._plan_growth(sequence, operation.token_count)
            if asked.request is None:
                asked.outcome = Outcome.OK
                sequence.token_count = max(sequence.token_count, operation.token_count)
        elif sequence.state is SequenceState.DROPPED:
            # Frames that the engine knew are not these.
            asked.known_blocks = 0
            sequence.token_count = max(sequence.token_count, operation.token_count)
            asked.request = self._plan_prefix(engine, sequence, Urgency.NEW)
        elif sequence.state is SequenceState.SWAPPING_IN and operation.token_count <= sequence.token_count:
            asked.outcome = Outcome.OK
        return asked

    def ask_in(self, engine: Engine, sequence: Sequence) -> Asked:
        """What a sequence needs to come back to the GPU."""
        asked = Asked(sequence, sequence.token_count)
        if sequence.state is SequenceState.SWAPPING_OUT:
            self._swaps.cancel_out(sequence)
        if sequence.state in _COMING:
            asked.outcome = Outcome.OK
        elif sequence.state is SequenceState.SWAPPED:
            room = blocks_for_tokens(sequence.token_count, self._config.block_tokens)
            fresh = room - len(sequence.rows)
            asked.request = Request(sequence, Urgency.RETURN, held=sequence.rows, fresh=fresh)
        else:
            asked.request = self._plan_prefix(engine, sequence, Urgency.RETURN)
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
        )
        engine.sequences[operation.sequence] = sequence
        return sequence

    def _plan_growth(self, sequence: Sequence, token_count: int) -> Request | None:
        """New blocks at the end, and one in the place of a part-filled last one that others share."""
        size = self._config.block_tokens
        fresh = blocks_for_tokens(token_count, size) - len(sequence.rows)
        if sequence.forked and self._shares_tail(sequence):
            fresh = max(fresh, 0) + 1
        return Request(sequence, Urgency.GROW, fresh=fresh) if fresh > 0 else None

    def _shares_tail(self, sequence: Sequence) -> bool:
        sequence.forked = (
            sequence.token_count % self._config.block_tokens != 0
            and self._memory.blocks.sharers(sequence.rows[-1]) > 1
        )
        return sequence.forked

    def _plan_prefix(self, engine: Engine, sequence: Sequence, urgency: Urgency) -> Request:
        """The cached prefix and new blocks behind it. At least one token is always computed."""
        size = self._config.block_tokens
        usable = (sequence.token_count - 1) // size
        pending = engine.pending.get(sequence.domain, {})
        keys = sequence.keys[:usable]

        def find() -> list[BlockRow]:
            return self._memory.prefix.find_prefix(sequence.domain, keys, pending)

        request = Request(sequence, urgency, fresh=blocks_for_tokens(sequence.token_count, size), find=find)
        request.look_again()
        return request

    # ---------------------------------------------------------------------- granting

    def grant(self, asked: list[Asked], time: float) -> list[Asked]:
        """Has all requests granted that can be; returns those that wait, with what they lack."""
        by_request = {each.request: each for each in asked if each.request is not None}
        waiting = [by_request[request] for request in self._admission.grant(list(by_request), time)]
        for each in by_request.values():
            each.outcome = Outcome.LATER if each in waiting else Outcome.OK
        return waiting

    def shortage(self, asked: Asked, time: float) -> int:
        return self._admission.frames_short(asked.request, time) if asked.request else 0

    def apply(self, engine: Engine, asked: list[Asked], step: StepNumber, copies: Copies) -> None:
        """Gives granted frames to their sequences."""
        granted = [each.request for each in asked if each.request and each.outcome is Outcome.OK]
        self._note_hits([request for request in granted if request.sequence.state is SequenceState.DROPPED])
        splits = len(copies.sources)
        for each in asked:
            request = each.request
            if request is None or each.outcome is not Outcome.OK:
                continue
            sequence = request.sequence
            if request.urgency is Urgency.GROW:
                self._grow(each, request, copies)
            elif sequence.state is SequenceState.SWAPPED:
                self._swaps.start_in(sequence, request.held, request.granted, sequence.filled_tokens)
            else:
                sequence.committed = len(request.held)
                filled = len(request.held) * self._config.block_tokens
                self._swaps.start_in(sequence, request.held, request.granted, filled)
            sequence.token_count = max(sequence.token_count, each.token_count)
        if sources := copies.sources[splits:]:
            # The engine copies in this step: what it copies from stays until the step has completed.
            rows = np.array(sources, np.int32)
            engine.fences.append(Release(fence=step, rows=rows, retention=Retention.CACHE))

    def _grow(self, asked: Asked, request: Request, copies: Copies) -> None:
        sequence, fresh = request.sequence, request.granted
        if sequence.forked:
            blocks, tail = self._memory.blocks, np.array(sequence.rows[-1:], np.int32)
            spare = np.array(fresh[:1], np.int32)
            sequence.forked = False
            if blocks.sharers(tail[0]) > 1:
                blocks.give_up(tail)
                copies.sources.append(sequence.rows[-1])
                copies.targets.append(fresh[0])
                # A part-filled block is not committed, so no fence looks at this place of the table.
                sequence.rows[-1] = fresh[0]
                asked.known_blocks = min(asked.known_blocks, len(sequence.rows) - 1)
            else:
                # The others have got tails of their own in this very step.
                blocks.release(spare)
                self._memory.collect(spare)
            fresh = fresh[1:]
        sequence.rows.extend(fresh)

    def _note_hits(self, requests: list[Request]) -> None:
        """Who uses which cached block, and where its best copy was: one look for the whole step."""
        if not requests:
            return
        blocks = self._memory.blocks
        rows = concat([request.held for request in requests])
        counts = [len(request.held) for request in requests]
        owners = np.repeat([request.sequence.owner for request in requests], counts)
        blocks.reused[rows] = True
        blocks.shared[rows[blocks.owner[rows] != owners]] = True
        best = self._memory.best_tier(rows).tolist()
        size, begin = self._config.block_tokens, 0
        for request, count in zip(requests, counts, strict=True):
            mine = best[begin : begin + count]
            gpu, cpu, disk = (mine.count(tier) * size for tier in Tier)
            request.sequence.found_tokens = (gpu, cpu, disk)
            begin += count

    # --------------------------------------------------------------------- answering

    def frames(self, tables: Many["array[int]"]) -> list[tuple[Frame, ...]]:
        """GPU frames of many tables: one look for all."""
        frames = self._memory.blocks.frame[Tier.GPU, concat(tables)].tolist()
        split: list[tuple[Frame, ...]] = []
        begin = 0
        for table in tables:
            split.append(tuple(frames[begin : begin + len(table)]))
            begin += len(table)
        return split

    def answer_allocate(self, asked: list[Asked]) -> list[AllocateResult]:
        tables = self.frames([self._told(each) for each in asked])
        return [self._allocate_result(each, table) for each, table in zip(asked, tables, strict=True)]

    def _told(self, asked: Asked) -> "array[int]":
        """The part of the table that the engine does not know yet."""
        if asked.sequence is None or asked.outcome is not Outcome.OK:
            return array("i")
        return asked.sequence.rows[asked.known_blocks :]

    def _allocate_result(self, asked: Asked, table: tuple[Frame, ...]) -> AllocateResult:
        sequence = asked.sequence
        if sequence is None or asked.outcome is not Outcome.OK:
            return AllocateResult(
                outcome=asked.outcome,
                state=sequence.state if sequence else SequenceState.DROPPED,
                frames_short=asked.frames_short,
            )
        return AllocateResult(
            outcome=Outcome.OK,
            state=sequence.state,
            cached_tokens=sum(sequence.found_tokens),
            block_table=table,
            first_block=asked.known_blocks,
            tier_tokens=sequence.found_tokens,
        )

    def answer_in(self, asked: list[Asked]) -> list[SwapResult]:
        tables = self.frames([self._told(each) for each in asked])
        return [
            SwapResult(
                outcome=each.outcome,
                state=each.sequence.state if each.sequence else SequenceState.DROPPED,
                block_table=table,
                valid_tokens=each.sequence.filled_tokens if each.sequence else 0,
                frames_short=each.frames_short,
            )
            for each, table in zip(asked, tables, strict=True)
        ]

    def frame_copies(self, copies: Copies) -> tuple[FrameCopy, ...]:
        if not copies.sources:
            return ()
        sources, targets = self.frames([array("i", copies.sources), array("i", copies.targets)])
        return tuple(FrameCopy(source=s, target=t) for s, t in zip(sources, targets, strict=True))
