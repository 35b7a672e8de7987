"""An engine for tests that are lists: it sends the operations it is given and hands back the answers."""

from collections.abc import Sequence
from typing import TypeVar

from kvstore.core.answers import KeepAliveAnswer, LookupAnswer, StepAnswer
from kvstore.core.calls import Attach, Detach, KeepAlive, Lookup, Single, Step
from kvstore.core.effects import Effects
from kvstore.core.events import TetherOpened, TethersClosed
from kvstore.core.notices import Notice, SequenceMoved
from kvstore.core.operations import AllocateResult, Operation, Result, SwapResult
from kvstore.core.sequences import Sequence as StoreSequence
from kvstore.core.types import (
    Activity,
    BlockKey,
    NamespaceId,
    Outcome,
    Revision,
    SequenceId,
    SequenceState,
    StepNumber,
    Tier,
    WriterId,
)
from tests.core.ops import activity, allocate, commit, free, swap_in, swap_out
from tests.core.shadow import Content, ReadTokens, WriteTokens
from tests.core.world import World, engine_id, keys_of

__all__ = ["Caller", "moves"]

R = TypeVar("R", bound=Result)


class Caller:
    """Steps of its own numbering. Unless `completed` says otherwise, no work is in flight."""

    def __init__(self, world: World, number: int = 1, *, namespace: int = 1, tether: bool = True) -> None:
        self.world = world
        self.number = number
        self.id = engine_id(number)
        self.step_number = 0

        self.effects = world.handle(self.attach_event(namespace))
        if tether:
            world.handle(TetherOpened(time=world.time, engine=self.id, pid=1000 + number))

    def attach_event(self, namespace: int = 1) -> Attach:
        return Attach(
            time=self.world.time,
            engine=self.id,
            request_id=f"request {self.number}",
            namespace=NamespaceId(namespace),
            writer=WriterId(self.number),
            build="test",
            lease_seconds=10.0,
        )

    # ---------------------------------------------------------------------------- calls

    def step(self, *operations: Operation, completed: int | None = None) -> StepAnswer:
        self.step_number += 1
        event = Step(
            time=self.world.time,
            engine=self.id,
            step=StepNumber(self.step_number),
            completed_step=StepNumber(self.step_number - 1 if completed is None else completed),
            operations=operations,
        )
        try:
            self.effects = self.world.handle(event)
        except Exception:
            self.step_number -= 1
            raise
        answer = self.effects.answer
        assert isinstance(answer, StepAnswer)
        return answer

    def one(self, kind: type[R], operation: Operation, completed: int | None = None) -> R:
        """The result of a step of one operation."""
        (result,) = self.step(operation, completed=completed).results
        assert isinstance(result, kind)
        return result

    def single(self, operation: Operation) -> StepAnswer:
        event = Single(time=self.world.time, engine=self.id, operation=operation)
        self.effects = self.world.handle(event)
        answer = self.effects.answer
        assert isinstance(answer, StepAnswer)
        return answer

    def keep_alive(self, completed: int | None = None, seen: int = 0) -> KeepAliveAnswer:
        event = KeepAlive(
            time=self.world.time,
            engine=self.id,
            completed_step=StepNumber(self.step_number if completed is None else completed),
            seen_revision=Revision(seen),
        )
        self.effects = self.world.handle(event)
        answer = self.effects.answer
        assert isinstance(answer, KeepAliveAnswer)
        return answer

    def lookup(self, block_keys: Sequence[BlockKey], tenant: str = "") -> LookupAnswer:
        event = Lookup(time=self.world.time, engine=self.id, block_keys=tuple(block_keys), tenant=tenant)
        answer = self.world.handle(event).answer
        assert isinstance(answer, LookupAnswer)
        return answer

    def detach(self) -> Effects:
        return self.world.handle(Detach(time=self.world.time, engine=self.id))

    def close_tethers(self) -> Effects:
        return self.world.handle(TethersClosed(time=self.world.time, engine=self.id))

    # ------------------------------------------------------------------- common requests

    def allocate(
        self,
        sequence: int,
        token_count: int,
        block_keys: Sequence[BlockKey] = (),
        *,
        session: str = "",
        priority: int = 0,
        tenant: str = "",
        completed: int | None = None,
    ) -> AllocateResult:
        operation = allocate(
            sequence, token_count, block_keys, session=session, priority=priority, tenant=tenant
        )
        return self.one(AllocateResult, operation, completed)

    def begin(
        self, sequence: int, tokens: Content, *, session: str = "", priority: int = 0, tenant: str = ""
    ) -> AllocateResult:
        """Allocates a text, computes what is not cached, and commits its full blocks."""
        keys = keys_of(tokens)
        result = self.allocate(sequence, len(tokens), keys, session=session, priority=priority, tenant=tenant)
        assert (result.outcome, result.state) == (Outcome.OK, SequenceState.RESIDENT)
        self.write(result.block_table, tokens, result.cached_tokens)
        self.step(commit(sequence, keys))
        return result

    def cache(self, tokens: Content, sequence: int = 999, *, session: str = "", tenant: str = "") -> None:
        """Computes a text, publishes it and frees it."""
        self.begin(sequence, tokens, session=session, tenant=tenant)
        self.step(free(sequence))
        self.step()

    def swap_out(self, sequence: int, filled_tokens: int = 0) -> SwapResult:
        return self.one(SwapResult, swap_out(sequence, filled_tokens))

    def swap_in(self, sequence: int) -> SwapResult:
        return self.one(SwapResult, swap_in(sequence))

    def rest(self, sequence: int, filled_tokens: int, **more: float) -> StepAnswer:
        return self.step(activity(sequence, Activity.WAITING, filled_tokens, **more))

    # ------------------------------------------------------------------ GPU work, at once

    def write(self, table: Sequence[int], tokens: Content, first: int = 0, end: int | None = None) -> None:
        """A kernel that writes the KV of tokens [first, end), run at once."""
        self.world.shadow.execute(
            WriteTokens(tuple(table), tokens, first, len(tokens) if end is None else end)
        )

    def read(self, table: Sequence[int], tokens: Content) -> None:
        """A kernel that reads the KV of all these tokens: they must be there."""
        self.world.shadow.execute(ReadTokens(tuple(table), tokens, len(tokens)))

    # ------------------------------------------------------------------------ inspection

    def sequence(self, sequence: int) -> StoreSequence:
        return self.world.store.membership.engines[self.id].sequences[SequenceId(sequence)]

    def table(self, sequence: int) -> tuple[int, ...]:
        """GPU frames as the store has them."""
        frames = self.world.store.memory.blocks.frame[Tier.GPU]
        return tuple(int(frames[row]) for row in self.sequence(sequence).rows)

    def state(self, sequence: int) -> SequenceState:
        return self.sequence(sequence).state


def moves(notices: Sequence[Notice]) -> list[SequenceMoved]:
    return [notice for notice in notices if isinstance(notice, SequenceMoved)]
