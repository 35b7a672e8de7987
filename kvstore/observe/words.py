"""Events, results and notices in words: one short line each."""

from collections.abc import Collection, Iterable

from kvstore.core.calls import (
    Attach,
    Detach,
    Drain,
    Forget,
    ForgetOn,
    GetSequence,
    KeepAlive,
    Lookup,
    Prefetch,
    Retain,
    SetCosts,
    SetLimits,
    Single,
    Step,
    Watch,
)
from kvstore.core.events import (
    BlocksFound,
    BlocksLost,
    DiskSynced,
    Event,
    FramesReturned,
    TetherOpened,
    TethersClosed,
    TransferEnded,
)
from kvstore.core.notices import Notice, PressureChanged
from kvstore.core.operations import (
    Allocate,
    AllocateResult,
    Commit,
    Decision,
    EndSession,
    Fork,
    Free,
    Grow,
    GrowResult,
    Operation,
    Result,
    Swap,
    SwapResult,
    UpdateActivity,
    UpdateActivityResult,
)
from kvstore.core.types import Direction, Outcome

__all__ = [
    "count",
    "event_words",
    "notice_words",
    "numbers",
    "operation_words",
    "result_words",
]

NUMBERS_MAX = 16


def count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def named(thing: str, values: Collection[int]) -> str:
    """sequence 4, sequences 4 5."""
    return f"{thing if len(values) == 1 else f'{thing}s'} {numbers(values)}"


def numbers(values: Iterable[int]) -> str:
    all_values = list(values)
    shown = " ".join(map(str, all_values[:NUMBERS_MAX]))
    left = len(all_values) - NUMBERS_MAX
    return f"{shown} and {left} more" if left > 0 else shown


def event_words(event: Event) -> str:
    match event:
        case Step():
            operations = ", ".join(map(operation_words, event.operations)) or "nothing"
            return (
                f"step {event.step} of engine {event.engine}, {event.completed_step} completed: {operations}"
            )
        case Single():
            return f"engine {event.engine}: {operation_words(event.operation)}"
        case KeepAlive():
            return f"engine {event.engine} keeps alive, step {event.completed_step} completed"
        case Attach():
            return f"engine {event.engine} attaches (build {event.build})"
        case Detach():
            return f"engine {event.engine} detaches"
        case Lookup():
            return f"engine {event.engine} looks up {count(len(event.block_keys), 'block')}"
        case GetSequence():
            return f"engine {event.engine} asks how sequence {event.sequence} stands"
        case Watch():
            return "somebody watches" if event.on else "nobody watches any more"
        case Drain():
            return "drain" if event.on else "the drain is cancelled"
        case Prefetch():
            return f"engine {event.engine} wants {_chain_words(event)} brought up to {event.target.name}"
        case Retain():
            kept = f"retained for {event.ttl_seconds:g} s, priority {event.priority}"
            return f"engine {event.engine} wants {_chain_words(event)} {kept}"
        case Forget():
            return f"Forget {_scope_words(event)}"
        case ForgetOn():
            return f"Forget {event.forget} goes on"
        case DiskSynced():
            return f"disk: {'some deletes are' if event.failed else 'nothing is'} not durable yet"
        case TetherOpened():
            return f"process {event.pid} maps the pools for engine {event.engine}"
        case TethersClosed():
            return f"no process maps the pools for engine {event.engine} any more"
        case TransferEnded():
            failed = f", failed for {named('place', event.failed)}" if event.failed else ""
            late = f", late for {named('place', event.late)}" if event.late else ""
            return f"transfer {event.transfer} ended{failed}{late}"
        case FramesReturned():
            return f"late frames of transfer {event.transfer} come back: {named('place', event.positions)}"
        case BlocksLost():
            return f"{count(len(event.keys), 'block')} lost on disk"
        case BlocksFound():
            return f"{count(len(event.blocks), 'block')} found on disk"
        case SetLimits():
            marks = (f"{each.tier.name} {each.low:.0%} to {each.high:.0%}" for each in event.watermarks)
            return f"watermarks set: {', '.join(marks)}"
        case SetCosts():
            costs = (
                f"{each.source.name} to {each.target.name} {each.bytes_per_second / 1e6:g} MB/s"
                for each in event.links
            )
            return f"links measured: {', '.join(costs)}"
    return "tick"


def operation_words(operation: Operation) -> str:
    match operation:
        case Allocate():
            session = f", session {operation.session}" if operation.session else ""
            tenant = f" of {operation.tenant}" if operation.tenant else ""
            tokens = count(operation.token_count, "token")
            return f"Allocate sequence {operation.sequence}, {tokens}{session}{tenant}"
        case Grow():
            return f"Grow {count(len(operation.sequences), 'sequence')}: {numbers(operation.sequences)}"
        case Fork():
            return f"Fork sequence {operation.parent} to {numbers(operation.children)}"
        case Swap():
            filled = f", {count(operation.filled_tokens, 'token')} filled" if operation.filled_tokens else ""
            mode = f" ({operation.mode.name})" if operation.direction is Direction.OUT else ""
            return f"Swap {operation.direction.name} sequence {operation.sequence}{mode}{filled}"
        case Free():
            return f"Free {named('sequence', operation.sequences)} ({operation.retention.name})"
        case Commit():
            first, blocks = operation.first_block, count(len(operation.block_keys), "block")
            return f"Commit sequence {operation.sequence}, {blocks} from {first} on"
        case UpdateActivity():
            delay = operation.resume_delay_seconds
            back = f", back in {delay:g} s" if delay >= 0 else ""
            return f"UpdateActivity sequence {operation.sequence}: {operation.activity.name}{back}"
        case EndSession():
            return f"EndSession {operation.session}"


def result_words(result: Result, blocks: int = 0, block_tokens: int = 1) -> str:
    """`blocks`: of how many it is told how many were cached."""
    match result:
        case AllocateResult() | SwapResult():
            words = [result.outcome.name, result.state.name]
            if result.outcome is not Outcome.OK:
                words.append(f"{count(result.frames_short, 'frame')} short")
            elif isinstance(result, AllocateResult):
                if blocks:
                    words.append(f"{result.cached_tokens // block_tokens} of {count(blocks, 'block')} cached")
            elif result.block_table:
                words.append(f"{count(result.valid_tokens, 'token')} valid")
            if isinstance(result, SwapResult) and result.decision is not None:
                words.append(_decision_words(result.decision))
            return ", ".join(words)
        case GrowResult():
            others = "".join(f", place {each.place} {result_words(each.result)}" for each in result.others)
            return f"{count(len(result.frames), 'frame')}{others}"
        case UpdateActivityResult():
            return f"{result.outcome.name}, {result.state.name}"
    return "OK"


def notice_words(notice: Notice) -> str:
    if isinstance(notice, PressureChanged):
        return f"pressure on {notice.tier.name} is {notice.pressure.name}"
    valid = f", {count(notice.valid_tokens, 'token')} valid" if notice.block_table else ""
    return f"sequence {notice.sequence} is {notice.state.name}{valid}"


def _chain_words(event: Prefetch | Retain) -> str:
    return f"session {event.session}" if event.session else count(len(event.block_keys), "block")


def _scope_words(event: Forget) -> str:
    words = [f"session {event.session}"] if event.session else []
    if event.tenant:
        words.append(f"tenant {event.tenant}")
    if event.namespace:
        words.append(f"namespace {event.namespace}")
    if event.writers:
        words.append(named("writer", event.writers))
    if event.whole_chain:
        words.append("with what others use of it")
    return ", ".join(words)


def _decision_words(decision: Decision) -> str:
    inputs = ", ".join(f"{name} {value:g}" for name, value in decision.inputs)
    costs = ""
    if decision.chosen_cost_seconds or decision.other_cost_seconds:
        costs = f" at {decision.chosen_cost_seconds:.3g} s over {decision.other_cost_seconds:.3g} s"
    return f"{decision.chosen} chosen{costs} ({inputs})"
