"""Who comes in with the next step: as many as may run at once, in order.

None overtakes one who can't come in yet, but one for whom another computes what it needs (`awaited.py`).
Where nobody may be preempted, who wants in asks only when room for all that it will need is certain
(`promises.py`).
Tests: tests/engine/test_scheduler.py, test_promises.py, test_awaited.py.
"""

from collections.abc import Iterable

from engine.requests import NO_SEQUENCE, Stream, StreamState, Work
from engine.scheduling.awaited import found_for, is_awaited
from engine.scheduling.order import Order
from engine.scheduling.preemption import Preemption
from engine.scheduling.promises import Promises
from engine.scheduling.roster import Roster
from kvstore.client import BlockTables, operations
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Entries"]


class Entries:
    def __init__(
        self,
        block_tokens: int,
        roster: Roster,
        order: Order,
        preemption: Preemption,
        *,
        running_max: int,
        promises: Promises | None,
        finds_blocks: bool,
    ) -> None:
        self._block_tokens = block_tokens
        self._roster = roster
        self._order = order
        self._preemption = preemption
        self._running_max = running_max
        self._promises = promises
        self._finds_blocks = finds_blocks
        # Those who have memory, or have just ended, each with its leading blocks that can be found.
        self._found: list[tuple[Stream, int]] = []
        # Who was not let in by the last step, because another computes what it needs.
        self._held_back: list[Stream] = []

    @property
    def are_behind(self) -> bool:
        """Since the last step was made, what somebody waits for has been computed."""
        held = [each for each in self._held_back if each.state is StreamState.QUEUED]
        found = self._found_blocks() if held else []
        return any(not is_awaited(each, found, self._block_tokens) for each in held)

    def begin(self) -> None:
        """A step is to be made. What is committed by it is found by the next."""
        self._held_back = []
        self._found = self._found_blocks() if self._roster.outside else []

    def next(self, tables: BlockTables, now: float, under_way: Work) -> Iterable[pb.Operation]:
        places = self._running_max - sum(each.width for each in self._roster.holding)
        is_returning = False
        waiting = self._roster.outside
        has_prompt = self._has_prompt(under_way)
        free_blocks = self._free_blocks(tables) if waiting else 0
        for stream in self._order.waiting(waiting, now):
            if self._is_held_back(stream):
                continue
            # One that is wider than all places enters when it is alone.
            if places < min(stream.width, self._running_max):
                return
            places -= stream.width
            if self._promises is not None:
                free_blocks -= self._promises.blocks_for(stream)
                if free_blocks < 0:
                    return
                if stream.tokens_pending > 1 and not self._promises.shares:
                    # Nothing is found or loaded: memory is of no use before the pass that writes to it.
                    if has_prompt:
                        return
                    has_prompt = True
            if stream.state is StreamState.PREEMPTED:
                level = self._order.level(stream, now)
                if not self._preemption.may_return(stream, level, tables):
                    return
                is_returning = True
                yield operations.swap_in(stream.sequence)
            elif is_returning:
                # In one step new ones are served first; these wait for the next.
                return
            else:
                is_short = stream.sequence != NO_SEQUENCE
                self._found.append((stream, found_for(stream, self._found)))
                yield self._first_allocate(stream)
                # It has found no room so far: what comes free is for it, and not for smaller ones.
                if is_short:
                    return

    def _is_held_back(self, stream: Stream) -> bool:
        is_new = stream.state is StreamState.QUEUED and stream.sequence == NO_SEQUENCE
        if not (self._finds_blocks and is_new and is_awaited(stream, self._found, self._block_tokens)):
            return False
        self._held_back.append(stream)
        return True

    def _found_blocks(self) -> list[tuple[Stream, int]]:
        return [(each, each.committed_blocks) for each in (*self._roster.holding, *self._roster.ended)]

    def _has_prompt(self, under_way: Work) -> bool:
        """Whether somebody has more to compute than a token, behind what is under way."""
        return any(each.tokens_pending - under_way.tokens_of(each) > 1 for each in self._roster.holding)

    def _free_blocks(self, tables: BlockTables) -> int:
        return self._promises.free_blocks(self._roster.holding, tables) if self._promises is not None else 0

    def _first_allocate(self, stream: Stream) -> pb.Operation:
        room = stream.room_needed(self._block_tokens)
        if stream.sequence != NO_SEQUENCE:  # Asked before: the store has kept the rest.
            return operations.allocate(stream.sequence, room)
        self._roster.number(stream)
        return operations.allocate(
            stream.sequence,
            room,
            block_keys=stream.chain.keys[: stream.findable_blocks(self._block_tokens)],
            session=stream.request.session,
            turn=stream.request.turn,
            priority=stream.request.priority,
        )
