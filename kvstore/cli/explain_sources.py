"""Where decisions are read from: a running service, or what one has recorded. Both answer the same call."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from kvstore.cli.explain_gaps import TimeOf, gaps_after, gaps_before, gaps_in
from kvstore.client.client import Client
from kvstore.v1 import kvstore_pb2 as pb

if TYPE_CHECKING:
    from kvstore.core.explaining import Explaining
    from kvstore.core.types import EngineId
    from kvstore.observe.reading import Run

__all__ = ["Answer", "ask", "recall"]

PAGE_SIZE_MAX = 1_000

# A page of what one service, or one run of it, has decided.
Page = Callable[[pb.ListDecisionsRequest], pb.ListDecisionsResponse]


class Answer(NamedTuple):
    """The latest decisions, the latest first; how many there are; whether what is named is known; and in
    sentences what a journal can't tell."""

    decisions: list[pb.Decision]
    total: int
    known: bool
    gaps: tuple[str, ...] = ()


def ask(socket: str, request: pb.ListDecisionsRequest, limit: int) -> Answer:
    """Of the service at that socket. `limit`: at most so many; 0: all."""
    with Client(socket) as client:
        return _take(client.operator.decisions_page, request, limit)


def recall(path: Path, request: pb.ListDecisionsRequest, limit: int) -> Answer:
    """Of all runs in a journal. Raises JournalInvalid where there is none."""
    # Imported here: to ask a service no core has to be loaded.
    from kvstore.core.errors import JournalInvalid
    from kvstore.observe.reading import find_headless, find_runs
    from kvstore.observe.recalling import recall_run
    from kvstore.server.decisions import check_one_engine, engines_named

    runs = find_runs(path)
    if not runs:
        raise JournalInvalid(
            "no run is recorded there",
            field="--journal",
            value=path,
            remedy="name the folder of `kvstore serve --journal`, or a segment in it",
        )
    answer = Answer([], 0, known=False)
    engines: set[EngineId] = set()
    gaps: list[str] = []
    for run in reversed(runs):
        recalled, time_of = recall_run(run), _clock(run)
        explaining = recalled.store.explaining
        gaps[:0] = gaps_in(run, recalled, request.kind, time_of)
        engines.update(engines_named(request.engine, explaining))
        left = limit - len(answer.decisions)
        is_enough = bool(limit) and left <= 0
        # Where there are enough, it is counted how many more there are.
        more = _take(_page_of(explaining, time_of), request, 1 if is_enough else left if limit else 0)
        decisions = answer.decisions + ([] if is_enough else more.decisions)
        answer = Answer(decisions, answer.total + more.total, known=answer.known or more.known)
    # Each run has engines of its own.
    check_one_engine(request.engine, sorted(engines))
    gaps[:0] = gaps_before(path, runs[0], _clock(runs[0]))
    gaps += gaps_after(find_headless(path))
    return answer._replace(gaps=tuple(gaps))


def _take(page: Page, request: pb.ListDecisionsRequest, limit: int) -> Answer:
    asked = pb.ListDecisionsRequest()
    asked.CopyFrom(request)
    decisions: list[pb.Decision] = []
    total, known = 0, False
    while True:
        asked.page_size = min(limit - len(decisions) if limit else PAGE_SIZE_MAX, PAGE_SIZE_MAX)
        response = page(asked)
        if not asked.page_token:
            total, known = response.total_count, response.known
        decisions += response.decisions
        asked.page_token = response.next_page_token
        if not asked.page_token or (limit and len(decisions) >= limit):
            return Answer(decisions, total, known)


def _page_of(explaining: "Explaining", time_of: TimeOf) -> Page:
    from kvstore.server.decisions import list_decisions

    return lambda request: list_decisions(request, explaining, time_of)


def _clock(run: "Run") -> TimeOf:
    heading = run.heading

    def time_of(core_time: float) -> Timestamp:
        time = Timestamp()
        time.FromNanoseconds(round(1e9 * (heading.start_wall + core_time - heading.start_time)))
        return time

    return time_of
