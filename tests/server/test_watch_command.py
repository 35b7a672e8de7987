"""What is watched through the client, and `kvstore watch`."""

import json
import signal
import subprocess
import sys

import pytest

from kvstore.cli.watch import describe
from kvstore.client import calls
from kvstore.client.client import Client
from kvstore.client.errors import Refused, Unanswered
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import (
    DEADLINE_SECONDS,
    Engine,
    Service,
    fill,
    key,
)
from tests.server.watcher import watching_all


def test_the_client_iterates_until_the_service_ends(service: Service) -> None:
    with Client(str(service.socket)) as client, service.stub() as stub:
        batches = client.operator.watch_events()
        assert next(batches).revision == 0
        with Engine(stub) as engine:
            fill(engine, 1, range(2))
            [event] = next(batches).events
            assert list(event.blocks_stored.block_keys) == [key(0), key(1)]
        service.end()
        with pytest.raises(Unanswered):
            list(batches)


def test_the_client_is_refused_what_is_compacted(shared: Service) -> None:
    with Client(str(shared.socket)) as client, pytest.raises(Refused) as refused:
        next(client.operator.watch_events(start_revision=7))
    assert refused.value.reason == "REVISION_COMPACTED"
    # Nothing has happened there: no range of events is named that ends before it begins.
    assert "no events are kept now, the next one is 1" in str(refused.value)


def test_one_who_watches_a_service_that_hangs_is_told_so(shared: Service) -> None:
    shared.send(signal.SIGSTOP)
    try:
        late = pytest.raises(Unanswered, match="did not answer in time")
        with Client(str(shared.socket), deadline_seconds=0.3) as client, late:
            next(client.operator.watch_events())
    finally:
        shared.send(signal.SIGCONT)


def test_a_service_that_hangs_later_on_is_noticed_by_its_pings(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = (("grpc.keepalive_time_ms", 200), ("grpc.keepalive_timeout_ms", 200))
    monkeypatch.setattr(calls, "WATCH_OPTIONS", (*calls.OPTIONS, *quick))
    with Client(str(service.socket)) as client:
        batches = client.operator.watch_events()
        assert not next(batches).events
        service.send(signal.SIGSTOP)
        with pytest.raises(Unanswered, match="is gone, or hangs"):
            next(batches)


def test_every_kind_of_event_has_a_line() -> None:
    moved = pb.SequenceMoved(engine="engines/e", sequence=7, state=pb.Sequence.RESIDENT, valid_tokens=9)
    pressure = pb.PressureChanged(tier=pb.TIER_CPU, pressure=pb.PRESSURE_HIGH)
    stored = pb.BlocksStored(tier=pb.TIER_DISK, block_keys=[key(0)], tenant="a")
    removed = pb.BlocksRemoved(tier=pb.TIER_DISK, block_keys=[key(0)], tenant="a")
    lines = {
        "engines/e sequence 7: RESIDENT, 9 tokens valid": pb.Event(sequence_moved=moved),
        "pressure on cpu: high": pb.Event(pressure_changed=pressure),
        "stored in disk, tenant 'a': 1 block 010000000000": pb.Event(blocks_stored=stored),
        "removed from disk, tenant 'a': 1 block 010000000000": pb.Event(blocks_removed=removed),
        "engines/e is gone": pb.Event(engine_expired=pb.EngineExpired(engine="engines/e")),
    }
    assert {event.WhichOneof("kind") for event in lines.values()} == {
        field.name for field in pb.Event.DESCRIPTOR.oneofs_by_name["kind"].fields
    }
    assert [describe(event) for event in lines.values()] == list(lines)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_the_command_prints_a_line_an_event(service: Service, flags: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "kvstore", "watch", "--socket", str(service.socket), "--start", "1"]
    with (
        service.stub() as stub,
        subprocess.Popen(
            [*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        # From revision 1 on, whenever it comes to watch: the store tells from its first event on.
        with watching_all(service) as watcher, Engine(stub) as engine:
            fill(engine, 1, range(5))
            watcher.take_until(lambda each: len(each.index[pb.TIER_GPU]) == 5)
            line = process.stdout.readline()
            assert process.stderr is not None
            epoch = f"{watcher.first.store_epoch:016x}"
            assert process.stderr.readline() == f"watching epoch {epoch} from revision 1 on\n"
            if flags:
                shown = json.loads(line)["blocks_stored"]
                assert (shown["tier"], shown["tenant"]) == ("TIER_GPU", "default")
                assert shown["block_keys"] == [key(number).hex() for number in range(5)]
            else:
                keys = " ".join(key(number).hex()[:12] for number in range(4))
                assert line.split(maxsplit=1) == [
                    "1",
                    f"stored in gpu, tenant 'default': 5 blocks {keys} …\n",
                ]
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECONDS) == 0


def test_a_revision_of_another_epoch_is_refused(shared: Service) -> None:
    command = [sys.executable, "-m", "kvstore", "watch", "--socket", str(shared.socket)]
    flags = ("--start", "1", "--epoch", "00000000deadbeef")
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 2
    assert "store_epoch = 00000000deadbeef: the store has been started anew since" in done.stderr
