"""A decision as a few lines for people."""

from collections.abc import Iterator

from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["describe"]

LINE_CHARACTERS = 108
INDENT = "    "


def describe(decision: pb.Decision) -> str:
    """When and of whom, what was chosen over what at which cost, why, and all figures."""
    return "\n".join([_headline(decision), *_reason(decision), *_figures(decision)])


def _headline(decision: pb.Decision) -> str:
    time = decision.time.ToDatetime().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    whom = [decision.kind]
    if decision.sequence:
        whom.append(f"of sequence {decision.sequence} of {decision.engine}")
    if decision.tenant:
        whom.append(f"of tenant {decision.tenant}")
    if decision.session:
        whom.append(f"(session {decision.session})")
    return f"{time} UTC  {' '.join(whom)}: {_choice(decision)}"


def _choice(decision: pb.Decision) -> str:
    chosen, other = decision.chosen_cost_seconds, decision.other_cost_seconds
    if not chosen and not other:
        return decision.chosen
    return f"{decision.chosen} for {_seconds(chosen)}; {decision.other} would cost {_seconds(other)}"


def _reason(decision: pb.Decision) -> Iterator[str]:
    if decision.reason:
        yield f"{INDENT}because {decision.reason}" if decision.kind == "evict" else INDENT + decision.reason


def _figures(decision: pb.Decision) -> Iterator[str]:
    """Name and value, as many a line as fit."""
    line = ""
    for name in sorted(decision.inputs):
        figure = f"{_name(name)} {_value(name, decision.inputs[name])}"
        if line and len(INDENT) + len(line) + 2 + len(figure) > LINE_CHARACTERS:
            yield f"{INDENT}{line},"
            line = ""
        line = f"{line}, {figure}" if line else figure
    if line:
        yield INDENT + line


def _name(name: str) -> str:
    for unit in ("_bytes_per_second", "_seconds"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def _value(name: str, value: float) -> str:
    if name.endswith("_bytes_per_second"):
        return f"{value / 1e9:.4g} GB/s" if value >= 1e9 else f"{value / 1e6:.4g} MB/s"
    if name.endswith("_seconds"):
        return _seconds(value)
    return f"{value:.6g}"


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size or value == 0:
            return f"{value / size:.4g} {unit}"
    return f"{value / 1e-9:.4g} ns"
