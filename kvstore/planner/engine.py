"""An engine in virtual time: it admits requests in the order of their coming, prefills one after the other,
and decodes all at once. One step of the store for all that happens in a moment."""

from collections import deque
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from kvstore.core.answers import KeepAliveAnswer, StepAnswer
from kvstore.core.calls import KeepAlive, Step
from kvstore.core.errors import check
from kvstore.core.notices import Notice, SequenceMoved
from kvstore.core.operations import Allocate, AllocateResult, Commit, EndSession, Free, Operation
from kvstore.core.types import LATER, NEVER, RESIDENT, Revision, SequenceId, StepNumber
from kvstore.planner.machine import ENGINE, Machine
from kvstore.planner.workload import Turn, Workload

__all__ = ["Engine", "Served"]

# Renewed by each step; asked for by itself where there were none for so long.
QUIET_SECONDS = 3.0
# A ticket counts for a second: who waits for copies asks again before that, so that they make haste.
ASK_AGAIN_SECONDS = 0.5


class Served(Struct, eq=False, gc=False):
    """A request on its way through the engine. Times are of the machine; the sequence's id is its number."""

    id: SequenceId
    turn: Turn
    arrival: float
    # From when on it had frames, and whether all that was found had been loaded.
    admitted: float = -1.0
    resident: bool = False
    cached_tokens: int = 0
    first_token: float = -1.0
    end: float = -1.0


class Engine:
    """`ended` is told each request when its answer is whole, or when it is refused: it would never fit.

    Without `reuse` nothing is published and nothing found. With `hints` the end of each conversation is told,
    as a client might who knows.
    """

    def __init__(
        self,
        machine: Machine,
        workload: Workload,
        ended: Callable[[Served], None],
        *,
        reuse: bool = True,
        hints: bool = False,
    ) -> None:
        self._machine = machine
        self._workload = workload
        self._ended = ended
        self._reuse, self._hints = reuse, hints
        # Arrived; sent for frames in this moment; with frames, not yet prefilled; of those, ready for it.
        self._waiting: deque[Served] = deque()
        self._asked: list[Served] = []
        self._prefilling: dict[SequenceId, Served] = {}
        self._ready: deque[Served] = deque()
        self._computes = False
        self._running = 0
        # Those first in the queue have been told to wait. They ask again when somebody has ended, and where
        # all the frames that they lack are on their way back also when copies have ended.
        self._is_blocked = self._awaits_copies = self._will_unblock = False
        self._operations: list[Operation] = []
        self._step = 0
        self._seen = Revision(0)
        self._last_call = 0.0
        self._count = 0
        self.prefill_seconds = 0.0
        self.prefill_seconds_saved = 0.0
        self.refused = 0
        self.running_most = self.waiting_most = 0

    def arrive(self, turn: Turn) -> None:
        self._count += 1
        self._waiting.append(Served(id=SequenceId(self._count), turn=turn, arrival=self._machine.time))
        self.waiting_most = max(self.waiting_most, len(self._waiting))
        self._machine.is_working = True

    def act(self) -> None:
        """All that is to be done in this moment: called when everything else for it has happened."""
        machine = self._machine
        if self._awaits_copies and machine.is_copied:
            self._is_blocked = False
        is_loading = len(self._prefilling) > len(self._ready) + self._computes
        if (machine.is_woken and is_loading) or machine.time - self._last_call >= QUIET_SECONDS:
            self._keep_alive()
        machine.is_woken = machine.is_copied = False
        while True:
            self._ask()
            if not self._operations:
                break
            self._send()
        if self._ready and not self._computes:
            self._prefill(self._ready.popleft())
        machine.is_working = bool(self._waiting or self._running)

    # ------------------------------------------------------------------------ the store

    def _ask(self) -> None:
        """For frames for those who come next, all at once, as many as may be on their way to their
        prefill."""
        profile = self._machine.profile
        room = min(profile.prefills_max - len(self._prefilling), profile.running_max - self._running)
        while self._waiting and room > len(self._asked) and not self._is_blocked:
            served = self._waiting.popleft()
            self._asked.append(served)
            self._operations.append(self._allocate(served))

    def _allocate(self, served: Served) -> Allocate:
        """For prompt and answer at once."""
        turn = served.turn
        usable = turn.usable_blocks(self._workload.block_tokens)
        return Allocate(
            sequence=served.id,
            token_count=turn.input_tokens + turn.output_tokens,
            block_keys=self._workload.keys_of(turn.prompt[:usable]) if self._reuse else (),
            session=turn.session if self._reuse else "",
            turn=turn.place,
        )

    def _send(self) -> None:
        machine = self._machine
        operations, self._operations = self._operations, []
        asked, self._asked = self._asked, []
        self._step += 1
        event = Step(
            time=machine.time,
            engine=ENGINE,
            step=StepNumber(self._step),
            # Time stands still while something is told: all work before it is done.
            completed_step=StepNumber(self._step - 1),
            operations=tuple(operations),
        )
        self._last_call = machine.time
        answer = machine.handle(event).answer
        if not isinstance(answer, StepAnswer):
            check(False, f"a step is answered with {answer}")
            return
        results = [result for result in answer.results if isinstance(result, AllocateResult)]
        late = [pair for pair in zip(asked, results, strict=True) if not self._take(*pair)]
        if late:
            self._waiting.extendleft(served for served, _ in reversed(late))
            self._is_blocked, self._awaits_copies = True, not late[0][1].frames_short
            if self._awaits_copies and not self._will_unblock:
                self._will_unblock = True
                machine.clock.at(machine.time + ASK_AGAIN_SECONDS, self._unblock)
        self._hear(answer.notices, answer.revision)

    def _take(self, served: Served, result: AllocateResult) -> bool:
        """False: it has to wait."""
        if result.outcome is LATER:
            return False
        if result.outcome is NEVER:
            self.refused += 1
            self._operations.append(Free(sequences=(served.id,)))
            self._ended(served)
            return True
        self._running += 1
        self.running_most = max(self.running_most, self._running)
        self._prefilling[served.id] = served
        served.admitted, served.cached_tokens = self._machine.time, result.cached_tokens
        if result.state is RESIDENT:
            self._be_ready(served)
        return True

    def _keep_alive(self) -> None:
        machine = self._machine
        self._last_call = machine.time
        event = KeepAlive(
            time=machine.time,
            engine=ENGINE,
            completed_step=StepNumber(self._step),
            seen_revision=self._seen,
        )
        answer = machine.handle(event).answer
        if isinstance(answer, KeepAliveAnswer):
            self._hear(answer.notices, answer.revision)

    def _hear(self, notices: tuple[Notice, ...], revision: Revision) -> None:
        self._seen = revision
        for notice in notices:
            served = self._prefilling.get(notice.sequence) if isinstance(notice, SequenceMoved) else None
            if served is not None and isinstance(notice, SequenceMoved) and not served.resident:
                check(notice.state is RESIDENT, f"a load that can't fail ends in {notice.state.name}")
                served.cached_tokens = min(served.cached_tokens, notice.valid_tokens)
                self._be_ready(served)

    def _unblock(self) -> None:
        self._is_blocked = self._will_unblock = False

    # -------------------------------------------------------------------------- the GPU

    def _be_ready(self, served: Served) -> None:
        served.resident = True
        self._ready.append(served)

    def _prefill(self, served: Served) -> None:
        profile, tokens = self._machine.profile, served.turn.input_tokens
        seconds = profile.prefill_seconds(served.cached_tokens, tokens)
        self.prefill_seconds += seconds
        self.prefill_seconds_saved += profile.prefill_seconds(0, tokens) - seconds
        self._computes = True
        self._machine.clock.at(self._machine.time + seconds, partial(self._prefilled, served))

    def _prefilled(self, served: Served) -> None:
        machine, turn = self._machine, served.turn
        del self._prefilling[served.id]
        self._computes = False
        served.first_token = machine.time
        self._commit(served, turn.prompt, served.cached_tokens // self._workload.block_tokens)
        left = max(0, turn.output_tokens - 1) * machine.profile.decode_seconds
        machine.clock.at(machine.time + left, partial(self._finish, served))

    def _finish(self, served: Served) -> None:
        turn = served.turn
        served.end = self._machine.time
        self._commit(served, (*turn.prompt, *turn.answer), len(turn.prompt))
        self._operations.append(Free(sequences=(served.id,)))
        if self._reuse and self._hints and turn.next is None:
            self._operations.append(EndSession(session=turn.session))
        self._running -= 1
        self._is_blocked = False
        self._ended(served)

    def _commit(self, served: Served, blocks: tuple[int, ...], first: int) -> None:
        if self._reuse and len(blocks) > first:
            keys = self._workload.keys_of(blocks[first:])
            self._operations.append(Commit(sequence=served.id, first_block=first, block_keys=keys))
