"""Operations of a step as scenario files write them."""

from collections.abc import Callable

from kvstore.core.operations import Operation
from kvstore.core.types import Activity, Retention, SwapMode
from tests.core.ops import activity, allocate, commit, end_session, fork, free, swap_in, swap_out
from tests.core.scenario_engine import Engine, Held
from tests.core.scenario_texts import Names, Text
from tests.core.scenario_words import Line, ScenarioError, number_of, seconds_of
from tests.core.world import BLOCK_TOKENS

__all__ = ["parse_operation"]


def parse_operation(engine: Engine, names: Names, line: Line) -> Operation:
    verb = line.word("an operation")
    if verb not in _VERBS:
        raise ScenarioError(f"{verb!r} is no operation: one of {', '.join(_VERBS)}")
    operation = _VERBS[verb](engine, names, line)
    line.done()
    return operation


def _allocate(engine: Engine, names: Names, line: Line) -> Operation:
    """`allocate s1 A0..A3`, or `allocate s1 16 tokens` where no key is named."""
    sequence = line.sequence()
    words = line.rest()
    text = Text()
    if len(words) == 2 and words[1] == "tokens":
        token_count = number_of(words[0], "", "a number of tokens")
    else:
        text = names.parse(words)
        token_count = len(text.tokens)
    held = engine.asked.setdefault(sequence, Held())
    if text.tokens:
        if not text.continues(held.text):
            raise ScenarioError(f"s{sequence} holds {held.text}, which {text} does not continue")
        held.text = text
    return allocate(
        sequence,
        token_count,
        text.keys,
        session=line.value("session"),
        priority=line.number("priority", 0),
        known_blocks=line.number("knows", 0),
        tenant=line.value("tenant"),
    )


def _commit(engine: Engine, names: Names, line: Line) -> Operation:
    """`commit s1`: all its full blocks that are filled; `commit s1 A2..A3`: these."""
    sequence = line.sequence()
    words = line.rest()
    held = engine.held(sequence)
    if words:
        text = names.parse(words)
    else:
        text = held.text.head(held.filled // BLOCK_TOKENS * BLOCK_TOKENS)
    return commit(sequence, text.keys, text.first)


def _fork(engine: Engine, names: Names, line: Line) -> Operation:
    return fork(line.sequence(), *line.sequences())


def _free(engine: Engine, names: Names, line: Line) -> Operation:
    retention = line.one_of("default", "cache", "session", "discard")
    return free(*line.sequences(), retention=Retention[retention.upper()])


def _swap(engine: Engine, names: Names, line: Line) -> Operation:
    direction = line.word("in or out")
    sequence = line.sequence()
    if direction == "in":
        return swap_in(sequence)
    if direction != "out":
        raise ScenarioError("swap in or swap out")
    mode = SwapMode[line.one_of("auto", "keep", "drop").upper()]
    filled = engine.asked[sequence].filled if sequence in engine.asked else 0
    return swap_out(sequence, line.number("filled", filled), mode)


def _activity(doing: Activity) -> Callable[[Engine, Names, Line], Operation]:
    def parse(engine: Engine, names: Names, line: Line) -> Operation:
        sequence = line.sequence()
        filled = engine.held(sequence).filled if doing is not Activity.RUNNING else 0
        return activity(sequence, doing, filled, seconds_of(line.value("back", "-1")))

    return parse


def _end_session(engine: Engine, names: Names, line: Line) -> Operation:
    if line.word("session") != "session":
        raise ScenarioError("end session NAME")
    return end_session(line.word("the session's name"), line.value("tenant"))


_VERBS: dict[str, Callable[[Engine, Names, Line], Operation]] = {
    "allocate": _allocate,
    "commit": _commit,
    "fork": _fork,
    "free": _free,
    "swap": _swap,
    "run": _activity(Activity.RUNNING),
    "wait": _activity(Activity.WAITING),
    "park": _activity(Activity.PARKED),
    "end": _end_session,
}
