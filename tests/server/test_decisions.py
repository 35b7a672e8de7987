"""ListDecisions and `kvstore explain` over the real service, and what its store is told of costs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from kvstore.client import operations
from kvstore.client.client import Client
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import BLOCK_TOKENS, Engine, Service, allocate, refusal, until

MakeService = Callable[..., Service]


def swap_out(sequence: int, tokens: int) -> pb.Operation:
    return operations.swap_out(sequence, tokens)


def refused(call: Callable[[], object]) -> tuple[grpc.StatusCode, str, str]:
    """Code, reason and field of the refusal that a call must end in."""
    with pytest.raises(grpc.RpcError) as error:
        call()
    info = refusal(error.value)
    return error.value.code(), info.reason, info.metadata.get("field", "")


def list_of(service: Service, **query: object) -> pb.ListDecisionsResponse:
    with service.stub() as stub:
        return stub.ListDecisions(pb.ListDecisionsRequest(**query))  # type: ignore[arg-type]


def explain(service: Service | None, *flags: str) -> subprocess.CompletedProcess[str]:
    where = ("--socket", str(service.socket)) if service is not None else ()
    command = [sys.executable, "-m", "kvstore", "explain", *where, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def preempt_some(service: Service) -> str:
    """Three sequences of two sessions are preempted; returns the engine's name."""
    with service.stub() as stub, Engine(stub) as engine:
        for sequence, session in ((1, "one"), (2, "two"), (3, "one")):
            engine.step(allocate(sequence, 3 * BLOCK_TOKENS, session=session))
            engine.step(swap_out(sequence, 3 * BLOCK_TOKENS))
        return engine.name


def test_decisions_are_listed_by_whom_they_concern_page_by_page(service: Service) -> None:
    assert list_of(service).decisions == []
    name = preempt_some(service)
    everything = list_of(service, kind="swap")
    assert [each.sequence for each in everything.decisions] == [3, 2, 1]
    assert not everything.next_page_token
    decision = everything.decisions[0]
    assert (decision.engine, decision.session) == (name, "one")
    assert decision.reason == "by length, what prefill costs is not known yet"
    assert decision.chosen == "drop"
    assert decision.inputs["tokens"] == 3 * BLOCK_TOKENS
    assert [each.sequence for each in list_of(service, session="one").decisions] == [3, 1]
    assert (everything.total_count, everything.known, decision.lots) == (3, True, 1)
    assert decision.last_time == decision.time
    first = list_of(service, kind="swap", page_size=2)
    assert [each.sequence for each in first.decisions] == [3, 2]
    rest = list_of(service, kind="swap", page_size=2, page_token=first.next_page_token)
    assert ([each.sequence for each in rest.decisions], rest.next_page_token) == ([1], "")
    # Counted for the first page.
    assert (first.total_count, rest.total_count) == (3, 0)


def test_sessions_of_one_name_are_told_apart_by_their_tenant(make_service: MakeService) -> None:
    service = make_service("--tenant", "ann", "--tenant", "bob").start()
    with service.stub() as stub, Engine(stub) as engine:
        for sequence, tenant in ((1, "ann"), (2, "bob")):
            engine.step(allocate(sequence, 3 * BLOCK_TOKENS, session="chat", tenant=tenant))
            engine.step(swap_out(sequence, 3 * BLOCK_TOKENS))
        for tenant, sequences in (("", [2, 1]), ("ann", [1]), ("bob", [2])):
            told = list_of(service, session="chat", tenant=tenant)
            assert ([each.sequence for each in told.decisions], told.known) == (sequences, True)
        unknown = list_of(service, tenant="carl")
        assert (list(unknown.decisions), unknown.known) == ([], False)
        with Client(str(service.socket)) as client:
            [own] = client.operator.list_decisions(tenant="bob")
            assert (own.sequence, own.tenant) == (2, "bob")
        call = refused(lambda: list_of(service, tenant="x" * 257))
        assert call == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "tenant")
    bobs = explain(service, "--session", "chat", "--tenant", "bob")
    assert (bobs.returncode, bobs.stderr) == (0, "")
    assert "swap of sequence 2 (session chat, engine " in bobs.stdout
    assert "sequence 1" not in bobs.stdout
    nobody = explain(service, "--tenant", "carl")
    assert nobody.returncode == 1
    assert "Tenants in decisions: bob, ann." in nobody.stderr


def test_an_engine_is_named_by_as_much_of_its_name_as_tells_it_from_others(service: Service) -> None:
    name = preempt_some(service)
    uuid = name.removeprefix("engines/")
    for beginning in (name, uuid, uuid[:8], uuid[:4], f"engines/{uuid[:4]}"):
        assert len(list_of(service, engine=beginning).decisions) == 3
    unknown = list_of(service, engine="00000000-")
    assert (list(unknown.decisions), unknown.known) == ([], False)
    again = preempt_some(service)
    shared = 0
    while uuid[:shared] == again.removeprefix("engines/")[:shared]:
        shared += 1
    if shared > 4:
        call = refused(lambda: list_of(service, engine=uuid[: shared - 1]))
        assert call == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "engine")
    assert len(list_of(service, engine=uuid[: max(4, shared)]).decisions) == 3


def test_what_is_not_known_is_told_from_what_nothing_was_decided_of(service: Service) -> None:
    assert not list_of(service, session="one").known
    with service.stub() as stub, Engine(stub) as engine:
        engine.step(allocate(1, BLOCK_TOKENS, session="quiet"))
        for query, known in (
            ({"session": "quiet"}, True),
            ({"sequence": 1}, True),
            ({"session": "nobody"}, False),
            ({"sequence": 2}, False),
        ):
            told = list_of(service, **query)
            assert (list(told.decisions), told.total_count, told.known) == ([], 0, known), query
        quiet = explain(service, "--session", "quiet")
        assert (quiet.returncode, quiet.stdout) == (0, "")
        assert quiet.stderr.startswith("session quiet: known, and no decision about it is remembered")
        engine.step(swap_out(1, BLOCK_TOKENS))
    nobody = explain(service, "--session", "quite")
    assert (nobody.returncode, nobody.stdout) == (1, "")
    first, names, try_it = nobody.stderr.splitlines()
    assert first.startswith("session quite: not known")
    assert names == "Sessions in decisions: quiet."
    assert "--journal" in try_it


@pytest.mark.parametrize(
    ("field", "value"),
    [("page_size", 1_001), ("page_token", "x"), ("page_token", "0"), ("kind", "none"), ("engine", "e")],
)
def test_what_can_not_be_asked_for_is_refused_by_its_name(shared: Service, field: str, value: object) -> None:
    call = refused(lambda: list_of(shared, **{field: value}))
    assert call == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", field)


def timing(step: int, tokens: int, seconds: float) -> pb.StepTiming:
    return operations.timing(step, seconds, prefilled=[(0, tokens)])


def test_with_timings_the_costs_decide_and_the_answer_says_on_what(service: Service) -> None:
    """Links are measured when the pools are made; an engine that is slow enough has its sequences swapped."""
    with service.stub() as stub, Engine(stub) as engine:
        engine.step(allocate(1, 3 * BLOCK_TOKENS, session="chat"))
        for number in range(10):
            request = pb.StepRequest(
                engine=engine.name,
                step=engine.steps + 1,
                completed_step=engine.steps,
                timings=[timing(engine.steps, 100 + 50 * number, 10.0 + 5 * number)],
            )
            stub.Step(request)
            engine.steps += 1
        [result] = engine.step(swap_out(1, 3 * BLOCK_TOKENS)).results
        decision = result.swap.decision
        assert (decision.chosen, decision.other, decision.reason) == ("swap", "drop", "")
        assert 0 < decision.chosen_cost_seconds < decision.other_cost_seconds
        assert decision.inputs["beta_seconds"] == pytest.approx(0.1, rel=0.1)
        assert decision.inputs["gpu_to_cpu_bytes_per_second"] > 0
        assert decision.inputs["gpu_price"] >= 1
        [listed] = list_of(service, session="chat", kind="swap").decisions
        assert (listed.lots, listed.last_time) == (1, listed.time)
        listed.ClearField("lots")
        listed.ClearField("last_time")
        assert listed == decision

        # A limit is a cost from the next beat on.
        limit = pb.RateLimit(bytes_per_second=1_000)
        stub.UpdateLimits(
            pb.UpdateLimitsRequest(limits=pb.Limits(rates={"gpu_to_cpu": limit, "cpu_to_gpu": limit}))
        )
        sequences = iter(range(2, 1_000))

        def choose() -> pb.Decision:
            sequence = next(sequences)
            engine.step(allocate(sequence, BLOCK_TOKENS))
            swap = engine.step(swap_out(sequence, BLOCK_TOKENS)).results[0].swap
            engine.step(operations.free([sequence], pb.FreeRequest.DISCARD))
            return swap.decision

        limited = until(choose, lambda found: found.inputs["gpu_to_cpu_bytes_per_second"] == 1_000.0)
        assert limited.chosen == "drop"


def test_an_absurd_timing_is_refused_and_the_step_may_be_sent_again_without(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        engine.step()
        bad = pb.StepTiming(step=1, prefill_tokens=5, prefill_context=12, elapsed=Duration(seconds=7_200))
        request = pb.StepRequest(engine=engine.name, step=2, completed_step=1, timings=[bad])
        assert refused(lambda: stub.Step(request)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "FIELD_INVALID",
            "timings[0].elapsed",
        )
        engine.step()


def test_explain_tells_people_and_programs(make_service: MakeService, folder: Path) -> None:
    journal = folder / "journal"
    service = make_service("--journal", str(journal), "--journal-bytes", "16MiB").start()
    name = preempt_some(service)
    told = explain(service, "--session", "one", "--kind", "swap")
    assert (told.returncode, told.stderr) == (0, "")
    heads = [line for line in told.stdout.splitlines() if line.startswith("20")]
    short = name.removeprefix("engines/")[:8]
    assert [line.split("  ", 1)[1] for line in heads] == [
        f"swap of sequence {number} (session one, engine {short})" for number in (1, 3)
    ]
    words = " ".join(told.stdout.split())
    assert "Dropped (12 tokens in blocks of 4). Both ways were not weighed: by length, what prefill" in words
    assert "Up to 64 tokens are dropped, what is longer is swapped out (--drop-tokens-max)." in words
    assert explain(service, "--engine", short, "--kind", "swap", "--limit", "1").stdout == "\n".join(
        [heads[1], *told.stdout.partition(heads[1])[2].splitlines()[1:], ""]
    )
    as_json = explain(service, "--sequence", "2", "--json")
    [decision] = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert (decision["kind"], decision["session"], decision["inputs"]["tokens"]) == ("swap", "two", 12.0)
    # What is left out is counted, and the flag that shows it named.
    cut = explain(service, "--kind", "swap", "--limit", "1")
    assert cut.stderr == "2 decisions before these left out: --limit 3 shows them, --limit 0 all there are.\n"
    assert len(explain(service, "--kind", "swap", "--limit", "0", "--json").stdout.splitlines()) == 3
    wrong = explain(service, "--kind", "all")
    assert (wrong.returncode, "kind" in wrong.stderr) == (2, True)
    # What was decided then comes out of the journal again, without a service: of all runs.
    live = explain(service, "--json", "--kind", "swap").stdout
    service.end()
    again = explain(None, "--journal", str(journal), "--json", "--kind", "swap")
    assert again.returncode == 0, again.stderr
    assert [_timeless(line) for line in again.stdout.splitlines()] == [
        _timeless(line) for line in live.splitlines()
    ]
    service.start()
    preempt_some(service)
    service.end()
    both = explain(None, "--journal", str(journal), "--json", "--kind", "swap")
    assert [_timeless(line) for line in both.stdout.splitlines()[:3]] == [
        _timeless(line) for line in live.splitlines()
    ]
    assert len(both.stdout.splitlines()) == 6
    cut = explain(None, "--journal", str(journal), "--kind", "swap", "--limit", "2", "--json")
    assert cut.stdout.splitlines() == both.stdout.splitlines()[4:]
    assert cut.stderr.startswith("4 decisions before these left out: --limit 6 shows them")


def _timeless(line: str) -> dict[str, object]:
    """Both clocks are read one after the other when a service starts, so times differ by microseconds."""
    decision: dict[str, object] = json.loads(line)
    del decision["time"], decision["last_time"]
    return decision
