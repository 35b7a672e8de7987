"""Who waits for a turn has its prompt brought up from disk meanwhile, and a queue drives itself out never."""

from contextlib import closing
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.model import Llama
from engine.requests import Request, Stream
from engine.scheduling.hints import STREAMS_AHEAD
from kvstore.client import Client
from kvstore.demo.children import Service
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.talk import Talk, granted, pressed
from tests.engine.test_engine import FRAME_BYTES, model, run_to_end

__all__ = ["model"]

BLOCKS = 30
PROMPTS = 8
# Of which a quarter may be brought up.
FRAMES = 120


def waiting(*tokens: int) -> tuple[Talk, list[Stream]]:
    """One runs, and these wait."""
    talk = Talk(running_max=1)
    talk.submit(20, answer=40)
    talk.step(granted)
    streams = [talk.submit(count, first=1000 * place) for place, count in enumerate(tokens, start=1)]
    talk.step(granted)
    return talk, streams


def hints(talk: Talk) -> list[int]:
    """Blocks of each that is given now."""
    return [len(keys) for keys in iter(lambda: talk.scheduler.next_hint(FRAMES), ())]


def test_those_who_are_next_are_brought_up_once_as_far_as_there_is_room() -> None:
    talk, streams = waiting(100, 200, 300)
    assert hints(talk) == [6, 12, 12]
    assert hints(talk) == []
    late = talk.submit(400, first=9000)
    while not streams[0].computed:
        assert hints(talk) == []
        talk.step(granted)
        talk.run()
    assert hints(talk) == [6]
    assert not late.computed


def test_who_runs_or_has_less_than_a_block_needs_none() -> None:
    talk, _ = waiting(16, 17)
    assert hints(talk) == [1]


def test_nothing_is_brought_up_while_the_cpu_tier_is_short() -> None:
    talk, _ = waiting(100)
    talk.step(granted, [pressed(pb.PRESSURE_HIGH, pb.TIER_CPU)])
    assert hints(talk) == []
    talk.step(granted, [pressed(pb.PRESSURE_LOW, pb.TIER_CPU)])
    assert hints(talk) == [6]


def test_who_comes_first_by_priority_is_brought_up_and_no_more_than_a_few() -> None:
    talk, _ = waiting(*[60] * STREAMS_AHEAD)
    assert len(hints(talk)) == STREAMS_AHEAD
    urgent = talk.submit(500, first=9000, priority=5)
    assert hints(talk) == [30 - 3 * STREAMS_AHEAD]
    while not urgent.computed:
        talk.step(granted)
        talk.run()
    assert hints(talk) == []


def test_another_service_has_brought_up_nothing() -> None:
    talk, _ = waiting(100)
    assert hints(talk) == [6]
    talk.scheduler.start_over()
    talk.step(granted)
    assert hints(talk) == [6]


# -------------------------------------------------------------------------- the real service


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def start(folder: Path, *, gpu: int, cpu: int) -> Service:
    gpu_bytes, cpu_bytes = gpu * FRAME_BYTES, cpu * FRAME_BYTES
    service = Service("service", folder, gpu_bytes=gpu_bytes, cpu_bytes=cpu_bytes, disk_bytes=64 << 20)
    service.until_answered()
    return service


@pytest.fixture
def on_disk(folder: Path, model: Llama) -> Path:
    """Prompts that a service has written to its disk before it ended."""
    service = start(folder, gpu=400, cpu=400)
    with closing(Engine(model, Client(service.address))) as engine:
        for place in range(PROMPTS):
            engine.submit(prompt(place))
        run_to_end(engine)
    service.end()
    return folder


def prompt(place: int, answer: int = 1) -> Request:
    tokens = tuple((place * 31 + each * 7) % 300 for each in range(BLOCKS * 16 + 1))
    return Request(id=str(place), prompt=tokens, max_new_tokens=answer, session=f"s{place}", turn=1)


def test_blocks_are_up_before_their_request_is_admitted(on_disk, model) -> None:
    service = start(on_disk, gpu=200, cpu=200)
    try:
        client = Client(service.address)
        with closing(Engine(model, client, running_max=1)) as engine:
            first = engine.submit(Request(id="x", prompt=(1, 2, 3), max_new_tokens=2000))
            late = engine.submit(prompt(3))
            while client.operator.usage().tiers[1].blocks_moved_in < BLOCKS:
                engine.step()
                assert not first.is_done
            engine.cancel(first, "the blocks are there")
            run_to_end(engine)
            assert (late.cached.cpu, late.cached.disk) == (BLOCKS * 16, 0)
    finally:
        service.end()


def test_a_queue_in_a_cpu_tier_too_small_for_it_reads_no_block_twice(on_disk, model) -> None:
    service = start(on_disk, gpu=48, cpu=80)
    try:
        client = Client(service.address)
        with closing(Engine(model, client, running_max=1)) as engine:
            streams = [engine.submit(prompt(place, answer=4)) for place in range(PROMPTS)]
            run_to_end(engine)
            usage = client.operator.usage()
        [reads] = [link for link in usage.links if (link.source, link.target) == (pb.TIER_DISK, pb.TIER_CPU)]
        assert all(stream.cached.cpu + stream.cached.disk == BLOCKS * 16 for stream in streams)
        assert sum(stream.cached.cpu for stream in streams) > 0
        assert reads.blocks_moved <= PROMPTS * BLOCKS
    finally:
        service.end()
