"""ListDecisions: pages of what was decided lately, the latest first."""

from itertools import islice

from kvstore.core.decisions import KINDS, DecisionQuery
from kvstore.core.types import EngineId, SequenceId
from kvstore.server.encode_results import encode_decision
from kvstore.server.fields import engine_id, refuse, short_text
from kvstore.server.running import RunningStore
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["decode_query", "list_decisions"]

PAGE_SIZE, PAGE_SIZE_MAX = 100, 1_000


def list_decisions(
    request: pb.ListDecisionsRequest, running: RunningStore | None
) -> pb.ListDecisionsResponse:
    """None before the first Attach."""
    query, size = decode_query(request)
    response = pb.ListDecisionsResponse()
    if running is None:
        return response
    page = list(islice(running.decisions(query), size + 1))
    response.decisions.extend(encode_decision(decision) for _, decision in page[:size])
    if len(page) > size:
        response.next_page_token = str(page[size - 1][0])
    return response


def decode_query(request: pb.ListDecisionsRequest) -> tuple[DecisionQuery, int]:
    """What is asked for, and how many of it a page."""
    if request.page_size > PAGE_SIZE_MAX:
        refuse("page_size", request.page_size, "too large", f"at most {PAGE_SIZE_MAX}")
    token = request.page_token
    if token and not (token.isascii() and token.isdigit() and len(token) < 20 and int(token)):
        refuse("page_token", token, "not a token", "the next_page_token of the page before")
    if request.kind and request.kind not in KINDS:
        refuse("kind", request.kind, "not a kind", ", ".join(KINDS))
    query = DecisionQuery(
        engine=engine_id("engine", request.engine) if request.engine else EngineId(""),
        sequence=SequenceId(request.sequence),
        session=short_text("session", request.session),
        kind=request.kind,
        before=int(token) if token else 0,
    )
    return query, request.page_size or PAGE_SIZE
