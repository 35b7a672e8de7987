"""Two outcomes of one event, in words, and where they differ."""

from msgspec import Struct, structs

from kvstore.core.answers import AttachAnswer, KeepAliveAnswer, LookupAnswer, StepAnswer
from kvstore.core.effects import Effects, Transfer
from kvstore.core.operations import AllocateResult, GrowResult, Result, SwapResult
from kvstore.observe.records import Outcome, Refusal
from kvstore.observe.words import count, notice_words, numbers, result_words

__all__ = ["differences", "outcome_words"]


def outcome_words(outcome: Outcome) -> str:
    if isinstance(outcome, Refusal):
        return f"refused, {outcome.reason}: {outcome.text}"
    if not isinstance(outcome, Effects):
        return f"the store stopped, {outcome.kind}: {outcome.text}"
    words = [_answer_words(outcome)]
    words += [_transfer_words(transfer) for transfer in outcome.transfers]
    words += [f"delete {count(len(delete.keys), 'block')} from disk" for delete in outcome.deletes]
    words += [f"wake engine {engine}" for engine in outcome.wake]
    return "; ".join(words)


def differences(recorded: object, found: object, path: str = "") -> list[str]:
    """Each place where the two differ, by its path from the top."""
    if type(recorded) is not type(found):
        return [f"{path or 'outcome'}: {_kind(recorded)} then, {_kind(found)} now"]
    if isinstance(recorded, Struct):
        names = [each.name for each in structs.fields(recorded)]
        pairs = [
            (f"{path}.{name}".lstrip("."), getattr(recorded, name), getattr(found, name)) for name in names
        ]
    elif isinstance(recorded, tuple) and isinstance(found, tuple) and len(recorded) == len(found):
        if not any(isinstance(each, Struct) for each in recorded):
            return [f"{path}: {recorded} then, {found} now"] if recorded != found else []
        pairs = [(f"{path}[{place}]", *pair) for place, pair in enumerate(zip(recorded, found, strict=True))]
    elif recorded != found:
        return [f"{path}: {recorded} then, {found} now"]
    else:
        return []
    return [line for place, before, now in pairs for line in differences(before, now, place)]


def _kind(value: object) -> str:
    return type(value).__name__ if isinstance(value, Struct) else str(value)


def _answer_words(effects: Effects) -> str:
    match effects.answer:
        case StepAnswer(results=results, notices=notices, copies=copies):
            words = [result_words(result) + _table_words(result) for result in results]
            words += [f"copy frame {copy.source} to {copy.target}" for copy in copies]
            words += [notice_words(notice) for notice in notices]
            return "; ".join(words) or "nothing asked"
        case KeepAliveAnswer(state=state, notices=notices):
            return "; ".join([state.name, *map(notice_words, notices)])
        case AttachAnswer(engine=engine, created=created):
            return f"engine {engine} {'created' if created else 'known'}"
        case LookupAnswer(blocks_cached=cached):
            return f"{count(cached, 'block')} cached"
    return "done"


def _table_words(result: Result) -> str:
    if isinstance(result, AllocateResult | SwapResult) and result.block_table:
        return f", frames {numbers(result.block_table)}"
    if isinstance(result, GrowResult) and result.frames:
        return f", frames {numbers(result.frames)}"
    return ""


def _transfer_words(transfer: Transfer) -> str:
    blocks = count(len(transfer.source_frames), "block")
    frames = f"frames {numbers(transfer.source_frames)} to {numbers(transfer.target_frames)}"
    return f"transfer {transfer.id} of {blocks}, {transfer.source.name} to {transfer.target.name}, {frames}"
