"""A decision in sentences, for who is on call."""

from collections.abc import Callable, Iterator
from textwrap import wrap

from kvstore.cli.explain_figures import Inputs
from kvstore.cli.explain_lots import admit_lines, evict_lines
from kvstore.cli.explain_moves import restore_lines, swap_lines
from kvstore.cli.texts import ENGINE_CHARACTERS, shown
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["describe", "short_engine"]

LINE_CHARACTERS = 108
INDENT = "    "

SENTENCES: dict[str, Callable[[pb.Decision, Inputs], Iterator[str]]] = {
    "swap": swap_lines,
    "restore": restore_lines,
    "evict": evict_lines,
    "admit": admit_lines,
}


def describe(decision: pb.Decision) -> str:
    """When and of whom, what was chosen over what at which cost, and on what that rested."""
    inputs = Inputs(decision.inputs)
    sentences = list(SENTENCES.get(decision.kind, _others)(decision, inputs))
    if rest := list(inputs.rest()):
        sentences.append("Also: " + ", ".join(rest) + ".")
    lines = [_headline(decision)]
    for sentence in sentences:
        lines += wrap(
            sentence,
            LINE_CHARACTERS,
            initial_indent=INDENT,
            subsequent_indent=INDENT + "  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def short_engine(name: str) -> str:
    """As `kvstore status` shows it."""
    return name.removeprefix("engines/")[:ENGINE_CHARACTERS]


def _headline(decision: pb.Decision) -> str:
    whom = [decision.kind]
    if decision.sequence:
        whom.append(f"of sequence {decision.sequence}")
    about = [f"session {shown(decision.session)}"] if decision.session else []
    if decision.engine:
        about.append(f"engine {short_engine(decision.engine)}")
    if decision.tenant:
        about.append(f"tenant {decision.tenant}")
    if about:
        whom.append(f"({', '.join(about)})")
    time, until = _time(decision.time.ToDatetime()), ""
    if decision.lots > 1:
        until = f" to {_time(decision.last_time.ToDatetime())[11:]}"
    return f"{time}{until} UTC  {' '.join(whom)}"


def _time(moment: object) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _others(decision: pb.Decision, inputs: Inputs) -> Iterator[str]:
    """A kind that a later service has."""
    yield f"{decision.chosen}: {decision.reason}." if decision.reason else f"{decision.chosen}."
