"""An engine in virtual time: who is admitted, who grows, and who makes room for whom. One step of the store
for all that happens in a moment; what is computed stands in `gpu.py`.

Requests come in in the order of their coming. A sequence has frames for what it has written, and grows piece
by piece. Where there is no room for that, and none is coming, the latest that decodes is preempted; it comes
back when another has left, before all that is new: as the engine of this project does it
(`engine/scheduler.py`).
"""

from collections import deque
from collections.abc import Callable

from kvstore.core.errors import check
from kvstore.core.notices import Notice, SequenceMoved
from kvstore.core.operations import (
    Allocate,
    AllocateResult,
    Commit,
    EndSession,
    Free,
    Grow,
    GrowResult,
    Operation,
    Result,
    Swap,
    SwapResult,
)
from kvstore.core.types import (
    GPU,
    LATER,
    NEVER,
    RESIDENT,
    SWAPPING_IN,
    SWAPPING_OUT,
    Direction,
    SequenceId,
    blocks_for_tokens,
)
from kvstore.planner.calls import Calls
from kvstore.planner.gpu import Gpu
from kvstore.planner.machine import Machine
from kvstore.planner.served import Served, growth_of
from kvstore.planner.waits import Waits
from kvstore.planner.workload import Turn, Workload

__all__ = ["Engine"]


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
        # By how much a sequence grows: whole blocks, as many as hold what its engine asks for at once.
        size = workload.block_tokens
        self._piece_tokens = blocks_for_tokens(machine.profile.growth_tokens, size) * size
        self.gpu = Gpu(machine, computed=self._begin_decode, full=self._fill_up, whole=self._finish)
        self._calls = Calls(machine, self.gpu)
        # Arrived; asked for in this step; with frames that are being loaded; in the order of numbers, those
        # whose prompt is computed and who are on the GPU, and of these who has no room for the next token.
        self._waiting: deque[Served] = deque()
        self._asked: dict[SequenceId, Served] = {}
        self._loading: dict[SequenceId, Served] = {}
        self._decoding: dict[SequenceId, Served] = {}
        self._full: dict[SequenceId, Served] = {}
        # Who is to make room; who has, and is not back yet; whose bytes are still on their way out.
        self._victim: Served | None = None
        self._preempted: dict[SequenceId, Served] = {}
        self._leaving: set[SequenceId] = set()
        self._running = 0
        self._waits = Waits(machine)
        self._operations: list[Operation] = []
        self._count = 0
        self.refused = self.preemptions = 0
        self.running_most = self.waiting_most = 0

    def arrive(self, turn: Turn) -> None:
        self._machine.begin_work()
        self._count += 1
        self._waiting.append(Served(id=SequenceId(self._count), turn=turn, arrival=self._machine.time))
        self.waiting_most = max(self.waiting_most, len(self._waiting))

    def act(self) -> None:
        """All that is to be done in this moment: called when everything else for it has happened."""
        machine = self._machine
        if machine.is_copied:
            self._waits.copied()
        has_news = machine.is_woken and (self._loading or self._leaving)
        if has_news or self._calls.is_quiet:
            self._hear(self._calls.keep_alive().notices)
        machine.is_woken = machine.is_copied = False
        while True:
            self._ask()
            if not self._operations:
                break
            self._send()
        self.gpu.act()
        machine.is_working = bool(self._waiting or self._running or self._preempted)

    # ------------------------------------------------------------------------ what is asked

    def _ask(self) -> None:
        if self._victim is not None:
            self._preempt(self._victim)
        if self._full and not self._waits.growth_waits:
            self._waits.growth_waits = True
            growth = growth_of(self._full.values(), self._workload.block_tokens, self._piece_tokens)
            self._operations.append(growth)
        wants_in = self._waiting or self._preempted
        if wants_in and not self._waits.is_blocked and not self._asked:
            self._ask_in()

    def _ask_in(self) -> None:
        """For those who come next, as many as may be on their way to their prefill. Nobody overtakes one who
        was preempted."""
        profile = self._machine.profile
        under_way = len(self._loading) + self.gpu.prefills
        room = min(profile.prefills_max - under_way, profile.running_max - self._running)
        if room <= 0:
            return
        if self._preempted:
            served = self._preempted[min(self._preempted)]
            may_return = served.id not in self._leaving and (
                self._waits.has_room_changed or not self._running
            )
            if may_return:
                self._asked[served.id] = served
                self._operations.append(Swap(sequence=served.id, direction=Direction.IN))
            return
        while self._waiting and room > len(self._asked):
            served = self._waiting.popleft()
            turn = served.turn
            if turn.blocks(self._workload.block_tokens) > self._machine.sizes.frames[GPU]:
                self.refused += 1
                self._ended(served)
                continue
            self._asked[served.id] = served
            self._operations.append(self._allocate(served))

    def _allocate(self, served: Served) -> Allocate:
        turn = served.turn
        usable = turn.usable_blocks(self._workload.block_tokens)
        return Allocate(
            sequence=served.id,
            token_count=served.first_room(self._piece_tokens),
            block_keys=self._workload.keys_of(turn.prompt[:usable]) if self._reuse else (),
            session=turn.session if self._reuse else "",
            turn=turn.place,
        )

    def _preempt(self, served: Served) -> None:
        self._victim = None
        self.gpu.stop(served)
        self._commit(served)
        del self._decoding[served.id]
        self._full.pop(served.id, None)
        self._preempted[served.id] = served
        self._running -= 1
        served.target = served.filled
        served.preemptions += 1
        self.preemptions += 1
        self._waits.preempted()
        self._operations.append(
            Swap(sequence=served.id, direction=Direction.OUT, filled_tokens=served.filled)
        )

    def _send(self) -> None:
        operations, self._operations = self._operations, []
        answer = self._calls.step(operations)
        for operation, result in zip(operations, answer.results, strict=True):
            self._take(operation, result)
        if self._asked:
            # They are in the queue again, in their order.
            self._waiting.extendleft(
                [served for served in reversed(self._asked.values()) if not served.preemptions]
            )
            self._asked.clear()
        self._hear(answer.notices)

    # ---------------------------------------------------------------------- what is answered

    def _take(self, operation: Operation, result: Result) -> None:
        match operation, result:
            case Allocate(), AllocateResult():
                check(result.outcome is not NEVER, "what never fits was not asked for")
                if result.outcome is LATER:
                    self._waits.block(result.frames_short)
                else:
                    self._enter(operation.sequence, result.cached_tokens, result.state is RESIDENT)
            case Swap(direction=Direction.IN), SwapResult():
                if result.outcome is LATER:
                    self._waits.block(result.frames_short)
                else:
                    self._enter(operation.sequence, result.valid_tokens, result.state is RESIDENT)
            case Swap(), SwapResult():
                if result.state is SWAPPING_OUT:
                    self._leaving.add(operation.sequence)
            case Grow(), GrowResult():
                self._take_growth(operation, result)
            case _:
                pass

    def _take_growth(self, operation: Grow, result: GrowResult) -> None:
        late = {
            operation.sequences[other.place]: other.result
            for other in result.others
            if other.result.outcome is LATER
        }
        for sequence in operation.sequences:
            if sequence not in late:
                served = self._full.pop(sequence)
                served.room = served.next_room(self._piece_tokens)
                self.gpu.decode(served)
        if late:
            self._waits.ask_again_later()
        if any(each.frames_short for each in late.values()):
            # No room is coming by itself. Who is alone waits for those who are not so far yet.
            others = len(self._decoding) > 1 or self._running == 1
            self._victim = self._decoding[max(self._decoding)] if others else None

    def _enter(self, sequence: SequenceId, valid_tokens: int, is_resident: bool) -> None:
        """It has frames, the first time or again."""
        served = self._asked.pop(sequence)
        self._running += 1
        self.running_most = max(self.running_most, self._running)
        if sequence in self._preempted:
            del self._preempted[sequence]
        else:
            turn = served.turn
            served.admitted, served.cached_tokens = self._machine.time, valid_tokens
            served.room, served.target = served.first_room(self._piece_tokens), turn.input_tokens
            served.committed = valid_tokens // self._workload.block_tokens
        if is_resident:
            self._be_there(served, valid_tokens)
        else:
            self._loading[sequence] = served

    def _be_there(self, served: Served, valid_tokens: int) -> None:
        """What has come of it is on the GPU."""
        served.filled = min(valid_tokens, served.target)
        served.committed = min(served.committed, served.filled // self._workload.block_tokens)
        if served.first_token < 0:
            served.cached_tokens = min(served.cached_tokens, valid_tokens)
        if served.filled < served.target:
            self.gpu.be_ready(served)
        else:
            self._decoding[served.id] = served
            self.gpu.decode(served)

    def _hear(self, notices: tuple[Notice, ...]) -> None:
        for notice in notices:
            if isinstance(notice, SequenceMoved):
                if notice.sequence in self._loading:
                    # A notice tells how things are, also where it is of what has been before: of its way out.
                    if notice.state is not SWAPPING_IN:
                        check(notice.state is RESIDENT, f"a load ends in {notice.state.name}, and none fails")
                        self._be_there(self._loading.pop(notice.sequence), notice.valid_tokens)
                elif notice.state is not SWAPPING_OUT:
                    self._leaving.discard(notice.sequence)

    # ------------------------------------------------------------------- what the GPU tells

    def _begin_decode(self, served: Served) -> None:
        self._decoding[served.id] = served
        self._commit(served)

    def _fill_up(self, served: Served) -> None:
        """It has no room for its next token."""
        self._commit(served)
        self._full[served.id] = served
        self._waits.growth_waits = False

    def _finish(self, served: Served) -> None:
        served.end = self._machine.time
        self._commit(served)
        del self._decoding[served.id]
        self._operations.append(Free(sequences=(served.id,)))
        if self._reuse and self._hints and served.turn.next is None:
            self._operations.append(EndSession(session=served.turn.session))
        self._running -= 1
        self._waits.ended()
        self._ended(served)

    def _commit(self, served: Served) -> None:
        """The blocks that it has filled since."""
        blocks = served.find_uncommitted(self._workload.block_tokens)
        if self._reuse and blocks:
            keys = self._workload.keys_of(blocks)
            commit = Commit(sequence=served.id, first_block=served.committed, block_keys=keys)
            self._operations.append(commit)
            served.committed += len(blocks)
