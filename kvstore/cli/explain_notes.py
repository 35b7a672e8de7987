"""What is told beside decisions, on stderr: what is left out or not known, and why there are none."""

from collections.abc import Callable, Iterator
from difflib import get_close_matches

from kvstore.cli.explain_sources import Answer
from kvstore.cli.texts import counted, shown
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Source", "names_anybody", "notes"]

NAMES_TOLD = 5
# What it means that there is no decision of a kind.
NOTHING = {
    "swap": "no sequence was swapped out or dropped",
    "restore": "none came in with content from below the GPU",
    "evict": "no block had to leave a tier",
    "admit": "none was to go to disk",
}

Source = Callable[[pb.ListDecisionsRequest, int], Answer]


def notes(answer: Answer, request: pb.ListDecisionsRequest, source: Source) -> Iterator[str]:
    yield from answer.gaps
    left_out = answer.total - len(answer.decisions)
    if left_out > 0:
        left = counted(left_out, "decision")
        yield f"{left} before these left out: --limit {answer.total} shows them, --limit 0 all there are."
    if answer.decisions:
        return
    if answer.gaps:
        kind = f" of the kind {request.kind}" if request.kind else ""
        about = f" about {_named(request)}" if names_anybody(request) else ""
        yield f"No decision{kind}{about} is among what is known."
    else:
        yield from _nothing(answer, request)
    if names_anybody(request) and not answer.known:
        yield from _advice(request, source)


def names_anybody(request: pb.ListDecisionsRequest) -> bool:
    return bool(request.session or request.sequence or request.engine or request.tenant)


def _nothing(answer: Answer, request: pb.ListDecisionsRequest) -> Iterator[str]:
    """Why there is no decision, where all that is remembered was looked through."""
    asked = _named(request)
    if not asked:
        what = f"Nothing of the kind {request.kind} was" if request.kind else "Nothing was"
        why = NOTHING.get(request.kind, "") if request.kind else ", ".join(NOTHING.values())
        yield f"{what} decided since the start that is still remembered" + (f": {why}." if why else ".")
    elif answer.known:
        kind = f" of the kind {request.kind}" if request.kind else ""
        yield (
            f"{asked}: known, and no decision{kind} about it is remembered. There was none, or so long ago "
            "that others have taken its place (the last 4,096 of each kind are remembered, since the start)."
        )
    else:
        yield f"{asked}: not known, neither there nor in any decision since the start that is remembered."


def _named(request: pb.ListDecisionsRequest) -> str:
    parts = [
        f"session {shown(request.session)}" if request.session else "",
        f"sequence {request.sequence}" if request.sequence else "",
        f"engine {request.engine}" if request.engine else "",
        f"tenant {shown(request.tenant)}" if request.tenant else "",
    ]
    return " and ".join(filter(None, parts))


def _advice(request: pb.ListDecisionsRequest, source: Source) -> Iterator[str]:
    """What to try."""
    if request.session or request.tenant:
        everything = source(pb.ListDecisionsRequest(), 0)
        if request.session:
            yield from _names("Sessions", request.session, _sessions(everything))
        if request.tenant:
            yield from _names("Tenants", request.tenant, _tenants(everything))
    yield (
        "Try it without --session, --sequence, --engine and --tenant for all; `kvstore status` shows the "
        "engines of a service, and its tenants where it has several; what was before its start is in its "
        "journal, if it has one (--journal FOLDER)."
    )


def _names(what: str, asked: str, names: dict[str, str]) -> Iterator[str]:
    """Those that are spelt like what was asked for, or the latest. `names`: with whose they are."""
    close = get_close_matches(asked, names, NAMES_TOLD) or list(names)[:NAMES_TOLD]
    if close:
        told = ", ".join(f"{shown(name)}{names[name]}" for name in close)
        yield f"{what} in decisions: {told}{', …' if len(names) > len(close) else ''}."


def _sessions(answer: Answer) -> dict[str, str]:
    """Named in them, the latest first, with whose they are where there are several tenants."""
    found: dict[str, dict[str, None]] = {}
    for decision in answer.decisions:
        for session, tenant in _named_in(decision):
            if session:
                found.setdefault(session, {})[tenant] = None
    return {session: _of(tenants) for session, tenants in found.items()}


def _of(tenants: dict[str, None]) -> str:
    names = [shown(tenant) for tenant in tenants if tenant]
    return f" (tenant{'s' if len(names) > 1 else ''} {', '.join(names)})" if names else ""


def _tenants(answer: Answer) -> dict[str, str]:
    return {tenant: "" for decision in answer.decisions for _, tenant in _named_in(decision) if tenant}


def _named_in(decision: pb.Decision) -> Iterator[tuple[str, str]]:
    """Sessions, each with whose it is; either may be empty."""
    yield decision.session, decision.tenant
    yield from (("", tenant) for tenant in decision.tenants)
    yield from ((each.session, each.tenant) for each in decision.room_for)
    yield from ((each.session, each.tenant) for each in decision.blocks_of)
