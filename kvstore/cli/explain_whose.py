"""Whom a lot of blocks concerns: for which sequences it made room, and whose the blocks were."""

from kvstore.cli.explain_figures import Inputs
from kvstore.cli.texts import ENGINE_CHARACTERS, shown
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["for_whom", "short_engine", "whose"]

# Of so many blocks it is remembered whose they are.
REMEMBERED_MAX = 1_024


def for_whom(decision: pb.Decision) -> str:
    """The sequences, by number and session, and the engines that number them."""
    engines = {each.engine: None for each in decision.room_for if each.engine}
    alone = len(engines) == 1
    named = [_sequence(each, decision.tenant, with_engine=not alone) for each in decision.room_for]
    if not named:
        return ""
    of = f", of engine {short_engine(next(iter(engines)))}" if alone else ""
    return f" (sequence{'s' if len(named) > 1 else ''} {', '.join(named)}{of})"


def whose(decision: pb.Decision, inputs: Inputs, blocks: int = 0) -> str:
    """By session, of most blocks first. `blocks`: of how many; 0: of that nothing more is told."""
    of_sessions, mine = inputs.count("blocks_of_sessions"), inputs.count("blocks_of_this_session")
    named = [
        f"{shown(each.session)}{_of_tenant(each.tenant, decision.tenant)} {each.blocks:,}"
        for each in decision.blocks_of
    ]
    others = of_sessions - sum(each.blocks for each in decision.blocks_of)
    if mine and decision.session not in {each.session for each in decision.blocks_of}:
        named.append(f"of this session {mine:,}")
        others -= mine
    if others > 0:
        named.append(f"of other sessions {others:,}")
    nobodys = min(blocks, REMEMBERED_MAX) - of_sessions
    if named and nobodys > 0:
        named.append(f"of no session {nobodys:,}")
    of = f", of the first {REMEMBERED_MAX:,}" if blocks > REMEMBERED_MAX else ""
    return f"Whose{of}: {', '.join(named) if named else 'of no session'}."


def short_engine(name: str) -> str:
    """As `kvstore status` shows it."""
    return name.removeprefix("engines/")[:ENGINE_CHARACTERS]


def _sequence(each: pb.Decision.RoomFor, tenant: str, *, with_engine: bool) -> str:
    parts = [f"{each.sequence}"]
    if each.session:
        parts.append(f"of session {shown(each.session)}")
    if each.tenant and each.tenant != tenant:
        parts.append(f"of tenant {shown(each.tenant)}")
    if with_engine and each.engine:
        parts.append(f"of engine {short_engine(each.engine)}")
    return " ".join(parts)


def _of_tenant(tenant: str, known: str) -> str:
    """Where it is not said already."""
    return f" (tenant {shown(tenant)})" if tenant and tenant != known else ""
