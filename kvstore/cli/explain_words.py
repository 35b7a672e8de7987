"""A decision in sentences, for who is on call."""

from collections.abc import Callable, Iterator
from textwrap import wrap

from kvstore.cli.explain_figures import Inputs, moment
from kvstore.cli.explain_lots import admit_lines, evict_lines
from kvstore.cli.explain_moves import restore_lines, swap_lines
from kvstore.cli.explain_whose import short_engine
from kvstore.cli.texts import shown
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["describe"]

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


def _headline(decision: pb.Decision) -> str:
    whom = [decision.kind]
    if decision.sequence:
        whom.append(f"of sequence {decision.sequence}")
    about = [f"session {shown(decision.session)}"] if decision.session else []
    if decision.engine:
        about.append(f"engine {short_engine(decision.engine)}")
    if decision.tenant:
        about.append(f"tenant {shown(decision.tenant)}")
    if decision.tenants:
        many = len(decision.tenants) > 1
        about.append(f"tenant{'s' if many else ''} {', '.join(map(shown, decision.tenants))}")
    if about:
        whom.append(f"({', '.join(about)})")
    time, last = moment(decision.time), moment(decision.last_time)
    until = f" to {last[11:]}" if decision.lots > 1 and last != time else ""
    return f"{time}{until} UTC  {' '.join(whom)}"


def _others(decision: pb.Decision, inputs: Inputs) -> Iterator[str]:
    """A kind that a later service has."""
    yield f"{decision.chosen}: {decision.reason}." if decision.reason else f"{decision.chosen}."
