"""ListDecisions: pages of what was decided lately, the latest first."""

import re
from collections.abc import Callable, Sequence
from itertools import islice

from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import structs

from kvstore.core.decisions import KINDS
from kvstore.core.explaining import DecisionQuery, Explaining, Told
from kvstore.core.types import EngineId, SequenceId
from kvstore.server.clock import timestamp
from kvstore.server.encode_results import encode_decision
from kvstore.server.fields import engine_name, refuse, short_text
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["PAGE_SIZE_MAX", "check_one_engine", "engines_named", "list_decisions"]

PAGE_SIZE, PAGE_SIZE_MAX = 100, 1_000
ENGINE_BEGINNING = re.compile(r"(?:engines/)?([0-9a-f-]{4,36})")
ENGINES_TOLD = 4
# No engine's id: what is asked of one that nobody knows is found nowhere.
UNKNOWN_ENGINE = EngineId("?")


def list_decisions(
    request: pb.ListDecisionsRequest,
    explaining: Explaining | None,
    time_of: Callable[[float], Timestamp] = timestamp,
) -> pb.ListDecisionsResponse:
    """`explaining` None: before the first Attach. `time_of`: a moment of the store on the wall clock."""
    query, size = _decode(request)
    response = pb.ListDecisionsResponse()
    if explaining is None:
        return response
    if query.engine:
        query = _with_engine(request.engine, query, explaining)
    page = list(islice(explaining.find(query), size + 1))
    response.decisions.extend(_encode(told, explaining, time_of) for told in page[:size])
    if len(page) > size:
        response.next_page_token = str(page[size - 1].number)
    if not query.before:
        response.total_count = explaining.count(query) if response.next_page_token else len(page)
        response.known = bool(page) or explaining.knows(query)
    return response


def _decode(request: pb.ListDecisionsRequest) -> tuple[DecisionQuery, int]:
    """What is asked for, and how many of it a page. The engine is as it was named."""
    if request.page_size > PAGE_SIZE_MAX:
        refuse("page_size", request.page_size, "too large", f"at most {PAGE_SIZE_MAX}")
    token = request.page_token
    if token and not (token.isascii() and token.isdigit() and len(token) < 20 and int(token)):
        refuse("page_token", token, "not a token", "the next_page_token of the page before")
    if request.kind and request.kind not in KINDS:
        refuse("kind", request.kind, "not a kind", ", ".join(KINDS))
    beginning = ENGINE_BEGINNING.fullmatch(request.engine)
    if request.engine and beginning is None:
        remedy = (
            "engines/UUID, or the beginning of the UUID, as kvstore status shows it: 4 characters or more"
        )
        refuse("engine", request.engine, "not an engine's name, nor the beginning of one", remedy)
    query = DecisionQuery(
        engine=EngineId(beginning[1] if beginning else ""),
        sequence=SequenceId(request.sequence),
        session=short_text("session", request.session),
        tenant=short_text("tenant", request.tenant),
        kind=request.kind,
        before=int(token) if token else 0,
    )
    return query, request.page_size or PAGE_SIZE


def engines_named(named: str, explaining: Explaining) -> list[EngineId]:
    """Those whose names begin so; none if nobody can be called so."""
    beginning = ENGINE_BEGINNING.fullmatch(named)
    return explaining.engines(beginning[1]) if beginning else []


def check_one_engine(named: str, engines: Sequence[EngineId]) -> None:
    """Refuses a name that more than one of them has."""
    if len(engines) > 1:
        more = f" and {len(engines) - ENGINES_TOLD} more" if len(engines) > ENGINES_TOLD else ""
        names = ", ".join(engine_name(engine) for engine in engines[:ENGINES_TOLD])
        refuse("engine", named, f"{len(engines)} engines begin so: {names}{more}", "name more of it")


def _with_engine(named: str, query: DecisionQuery, explaining: Explaining) -> DecisionQuery:
    """The one whose name begins so."""
    engines = engines_named(named, explaining)
    check_one_engine(named, engines)
    return structs.replace(query, engine=engines[0] if engines else UNKNOWN_ENGINE)


def _encode(told: Told, explaining: Explaining, time_of: Callable[[float], Timestamp]) -> pb.Decision:
    message = encode_decision(told.decision)
    message.time.CopyFrom(time_of(told.decision.time))
    message.lots = told.lots
    message.last_time.CopyFrom(time_of(told.until))
    for party in told.room_for:
        name = engine_name(party.engine)
        tenant = explaining.tenant_of(party.domain)
        message.room_for.add(engine=name, sequence=party.sequence, session=party.session, tenant=tenant)
    for each in told.blocks_of:
        tenant = explaining.tenant_of(each.domain)
        message.blocks_of.add(session=each.session, blocks=each.blocks, tenant=tenant)
    message.tenants.extend(told.tenants)
    return message
