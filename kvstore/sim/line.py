"""A sequence as its engine sees it."""

from dataclasses import dataclass, field

from kvstore.core.notices import SequenceMoved
from kvstore.core.operations import Allocate, AllocateResult, SwapResult
from kvstore.core.types import Outcome, SequenceState
from kvstore.sim.texts import BLOCK_TOKENS
from kvstore.sim.work import Inherit, Seen, Space
from kvstore.sim.wrong import expect

__all__ = ["Line"]


@dataclass(eq=False)
class Line:
    """The tokens that it stands for and how far they are written, as told by answers and notices."""

    id: int
    tokens: list[int]
    tenant: str
    space: Space
    session: str = ""
    # Of a chat that comes back, from 1.
    turn: int = 0
    table: list[int] = field(default_factory=list)
    written: int = 0
    committed: int = 0
    # Tokens for which it has frames.
    room: int = 0
    state: SequenceState = SequenceState.DROPPED
    running: bool = False
    # Shared with work in flight, which goes on noting in it.
    seen: Seen = field(default_factory=Seen)
    inherited: list[Inherit] = field(default_factory=list)

    @property
    def is_fresh(self) -> bool:
        """It has no frames and comes back by an Allocate."""
        return self.state is SequenceState.DROPPED and self.room == 0

    def take_allocate(self, operation: Allocate, result: AllocateResult) -> bool:
        """False: the sequence does not exist, it would never fit."""
        if result.outcome is Outcome.NEVER:
            self.tokens = self.tokens[: max(self.room, self.written, 1)]
            return not self.is_fresh or bool(self.table)
        if result.outcome is Outcome.LATER:
            return True
        first = result.first_block
        expect(len(self.table) >= first, f"blocks before {first} were left out, and not known")
        self.table = self.table[:first] + list(result.block_table)
        self.room = operation.token_count
        if self.state is SequenceState.DROPPED:
            self.running = True
            self._begin_again(result.cached_tokens)
        self.state = result.state
        return True

    def take_swap_in(self, result: SwapResult) -> None:
        before, self.state = self.state, result.state
        if result.outcome is Outcome.OK:
            self.running = True
            self.table = list(result.block_table)
            if before is not SequenceState.RESIDENT:
                self._keep(result.valid_tokens)

    def take_swap_out(self, result: SwapResult) -> None:
        self.state = result.state
        if self.state is SequenceState.DROPPED:
            self._begin_again(0)

    def take_moved(self, notice: SequenceMoved) -> None:
        self.state = notice.state
        if notice.state is SequenceState.RESIDENT:
            self.table = list(notice.block_table)
            self._keep(notice.valid_tokens)
        elif notice.state is SequenceState.DROPPED:
            self.table, self.room = [], 0
            self._begin_again(0)

    def _begin_again(self, written: int) -> None:
        """Other blocks than before: what was seen of those means nothing."""
        self.written, self.committed = written, written // BLOCK_TOKENS
        self.seen = Seen()

    def _keep(self, valid_tokens: int) -> None:
        """The same blocks as before, as far as they have come back."""
        if valid_tokens < self.written:
            # Work in flight still looks at what was lost.
            before, self.seen = self.seen, Seen()
            self.seen.granted_at = before.granted_at
            self.inherited.append(Inherit(before, self.seen, -(-valid_tokens // BLOCK_TOKENS)))
        self.written = valid_tokens
        self.committed = min(self.committed, valid_tokens // BLOCK_TOKENS)

    def take_inherited(self) -> list[Inherit]:
        """What its stream has to pass on before it goes on."""
        inherited, self.inherited = self.inherited, []
        return inherited
