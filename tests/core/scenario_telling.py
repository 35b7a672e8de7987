"""Effects in words.

Frames are called g1, g2, … (GPU) and c1, c2, … (CPU) in the order in which a scenario first shows them, and
transfers t1, t2, …: which frame it is is the store's affair, that it is the same one again is not.
"""

from dataclasses import dataclass, field

from kvstore.core.answers import (
    AttachAnswer,
    ForgetAnswer,
    KeepAliveAnswer,
    LookupAnswer,
    PrefetchAnswer,
    RetainAnswer,
    StepAnswer,
)
from kvstore.core.effects import DiskNote, Effects, SessionsForgotten, SessionsKept, Transfer
from kvstore.core.errors import KVStoreError
from kvstore.core.notices import Notice, SequenceMoved
from kvstore.core.operations import (
    Allocate,
    AllocateResult,
    Decision,
    Fork,
    ForkResult,
    Operation,
    Result,
    Swap,
    SwapResult,
    UpdateActivity,
    UpdateActivityResult,
)
from kvstore.core.types import Direction, EngineId, Outcome, SequenceState, StoredKey, Tier, TransferId
from kvstore.core.usage import Usage
from tests.core.scenario_engine import Engine
from tests.core.scenario_texts import Names
from tests.core.world import engine_id

__all__ = ["Telling"]

_TIERS = {Tier.GPU: "GPU", Tier.CPU: "CPU", Tier.DISK: "disk"}


@dataclass(slots=True)
class Telling:
    """What the frames and transfers of one scenario are called."""

    names: Names
    frames: dict[tuple[Tier, int], str] = field(default_factory=dict)
    transfers: dict[TransferId, str] = field(default_factory=dict)
    transfer_count: int = 0

    def forget_places(self) -> None:
        """The service has begun anew: its frames and transfers are others."""
        self.frames.clear()
        self.transfers.clear()

    def effects(self, effects: Effects, operations: tuple[Operation, ...] = (), seen: int = 0) -> list[str]:
        """In the order in which they take effect; of the notices, those after revision `seen`."""
        lines: list[str] = []
        match effects.answer:
            case StepAnswer() as answer:
                lines += self._step(operations, answer)
                lines += self._notices(answer.notices, seen)
            case KeepAliveAnswer() as answer:
                lines += self._notices(answer.notices, seen)
            case AttachAnswer() as answer:
                lines.append("attached" if answer.created else "attached before: the same engine")
            case LookupAnswer() as answer:
                lines.append(_found(answer.blocks_by_tier, "block"))
            case PrefetchAnswer() as answer:
                lines.append(f"{answer.blocks_started} on their way up")
            case RetainAnswer() as answer:
                lines.append(f"{answer.blocks_retained} retained")
            case ForgetAnswer() as answer:
                end = (
                    "done"
                    if answer.done
                    else "there are more"
                    if answer.lots_left
                    else "the disk is waited for"
                )
                lines.append(f"{answer.blocks_forgotten} forgotten, {end}")
        for delete in effects.deletes:
            lines.append(f"delete from disk: {self._blocks(delete.keys)}")
        for note in effects.notes:
            lines += self._note(note)
        if effects.syncs:
            lines.append("disk is asked whether all is deleted")
        lines += [self._transfer(transfer) for transfer in effects.transfers]
        if effects.wake:
            lines.append("wake " + " ".join(engine_name(engine) for engine in effects.wake))
        return lines

    def _note(self, note: DiskNote) -> list[str]:
        """Which blocks were used is told every two seconds, and would be shown at every wait."""
        match note:
            case SessionsKept():
                chains = [(each.name, " ".join(map(self.names.word, each.keys))) for each in note.sessions]
                return [f"disk keeps session {name}: {chain}" for name, chain in chains]
            case SessionsForgotten():
                return [f"disk forgets session {each.name}" for each in note.sessions]
        return []

    def _step(self, operations: tuple[Operation, ...], answer: StepAnswer) -> list[str]:
        lines: list[str] = []
        for operation, result in zip(operations, answer.results, strict=True):
            lines += self._result(operation, result)
        for copy in answer.copies:
            lines.append(
                f"copy {self._table((copy.source,))} to {self._table((copy.target,))} before the pass"
            )
        return lines

    def _result(self, operation: Operation, result: Result) -> list[str]:
        match operation, result:
            case Allocate(), AllocateResult():
                parts = [f"s{operation.sequence}: {_outcome(result.outcome, result.frames_short)}"]
                parts.append(_state(result.state))
                if result.block_table:
                    whose = f"table from block {result.first_block}" if result.first_block else "table"
                    parts.append(f"{whose} {self._table(result.block_table)}")
                if result.cached_tokens:
                    parts.append(_found(result.tier_tokens, "token", " cached"))
            case Swap(), SwapResult():
                is_in = operation.direction is Direction.IN
                outcome = _outcome(result.outcome, result.frames_short) if is_in else result.outcome.name
                parts = [f"s{operation.sequence}: {outcome}", _state(result.state)]
                if result.block_table:
                    parts.append(
                        f"table {self._table(result.block_table)}, {result.valid_tokens} tokens valid"
                    )
                if result.decision:
                    parts.append(_decision(result.decision))
            case Fork(), ForkResult():
                parts = [f"s{operation.parent} forked: {result.outcome.name}"]
            case UpdateActivity(), UpdateActivityResult():
                parts = [f"s{operation.sequence}: {result.outcome.name}, {_state(result.state)}"]
            case _:
                return []
        return [", ".join(parts)]

    def _notices(self, notices: tuple[Notice, ...], seen: int) -> list[str]:
        return [self._notice(notice) for notice in notices if notice.revision > seen]

    def _notice(self, notice: Notice) -> str:
        if not isinstance(notice, SequenceMoved):
            return f"notice: pressure on the {_TIERS[notice.tier]} is {notice.pressure.name}"
        valid = f"{_count(notice.valid_tokens, 'token')} valid"
        told = f"notice: s{notice.sequence} is {_state(notice.state)}, {valid}"
        return told + (f", table {self._table(notice.block_table)}" if notice.block_table else "")

    def _transfer(self, transfer: Transfer) -> str:
        self.transfer_count += 1
        name = self.transfers[transfer.id] = f"t{self.transfer_count}"
        blocks = self._blocks(transfer.keys)
        source, target = (
            blocks if tier is Tier.DISK else self._table(frames, tier)
            for tier, frames in (
                (transfer.source, transfer.source_frames),
                (transfer.target, transfer.target_frames),
            )
        )
        return f"{name}: {_TIERS[transfer.source]} to {_TIERS[transfer.target]}, {source} to {target}"

    def _table(self, frames: tuple[int, ...], tier: Tier = Tier.GPU) -> str:
        letter = _TIERS[tier][0].lower()
        for frame in frames:
            count = sum(known is tier for known, _ in self.frames)
            self.frames.setdefault((tier, frame), f"{letter}{count + 1}")
        return " ".join(self.frames[tier, frame] for frame in frames)

    def _blocks(self, keys: tuple[StoredKey, ...]) -> str:
        return " ".join(self.names.word(key.key) for key in keys)

    # ------------------------------------------------------------------------------ the rest

    def refusal(self, refusal: KVStoreError) -> str:
        value = self.names.in_text(refusal.value)
        for number in range(100):
            value = value.replace(f"engines/{engine_id(number)}", f"E{number}")
        where = f", {refusal.field} = {value or repr(value)}" if refusal.field else ""
        return f"refused: {refusal.reason}{where}"

    def usage(self, usage: Usage) -> list[str]:
        lines: list[str] = []
        for used in usage.tiers:
            if not used.frames_total:
                continue
            held = used.frames_total - used.frames_free - used.frames_cached
            parts = [f"{used.frames_free} free", f"{used.frames_cached} cached", f"{held} held"]
            if used.frames_pinned:
                parts.append(f"{used.frames_pinned} pinned")
            if used.frames_quarantined:
                parts.append(f"{used.frames_quarantined} in quarantine")
            if used.frames_late:
                parts.append(f"{used.frames_late} late")
            if used.blocks_shed:
                parts.append(f"{_count(used.blocks_shed, 'block')} shed")
            lines.append(f"{_TIERS[used.tier]}: {', '.join(parts)}")
        return lines

    def sequences(self, engines: list[Engine]) -> list[str]:
        """As their engines know them."""
        lines: list[str] = []
        for engine in engines:
            for number, held in sorted(engine.asked.items()):
                table = f", table {self._table(held.table)}" if held.table else ""
                lines.append(f"E{engine.number} s{number}: {_state(held.state)}, {held.filled} tokens{table}")
        return lines


def engine_name(engine: EngineId) -> str:
    return f"E{int(engine.rsplit('-', 1)[1])}"


def _outcome(outcome: Outcome, frames_short: int) -> str:
    if outcome is not Outcome.LATER:
        return outcome.name
    return f"LATER, {_count(frames_short, 'frame')} short" if frames_short else "LATER, room is on its way"


def _state(state: SequenceState) -> str:
    return state.name.lower().replace("_", " ")


def _found(by_tier: tuple[int, ...], what: str, more: str = "") -> str:
    where = ", ".join(f"{count} {_TIERS[tier]}" for tier, count in zip(Tier, by_tier, strict=True) if count)
    return _count(sum(by_tier), what) + more + (f" ({where})" if where else "")


def _count(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _decision(decision: Decision) -> str:
    room = "" if dict(decision.inputs)["room_below"] else ", no room below"
    return f"chosen: {decision.chosen}{room}"
