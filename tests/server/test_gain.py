"""Loads that a service can do little for, as its status tells them, and one that it can."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from kvstore.cli.advice import advise
from kvstore.client import Client, Layout, operations
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import Service

SEQUENCES, BLOCK_TOKENS = 60, 16
LAYOUT = Layout(block_tokens=BLOCK_TOKENS, block_bytes=8192, fingerprint=b"g" * 32)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("kv"), gpu_frames=128, cpu_frames=160).start()
    yield service
    service.end()


class Seen(Client):
    """Knows what was counted before it came: the service is not its own."""

    def __init__(self, service: Service) -> None:
        super().__init__(f"unix:{service.socket}")
        self.attach(LAYOUT)
        self._before = self.operator.usage()

    def usage(self) -> pb.Usage:
        usage = self.operator.usage()
        for now, before in ((usage.prefix, self._before.prefix), (usage.sequences, self._before.sequences)):
            for field, value in before.ListFields():
                setattr(now, field.name, getattr(now, field.name) - value)
        return usage


@pytest.fixture
def client(lent: Service) -> Iterator[Seen]:
    with Seen(lent) as client:
        yield client
        client.detach()


def keys(text: str, blocks: int) -> list[bytes]:
    return [hashlib.sha256(f"{text}, {block}".encode()).digest() for block in range(blocks)]


def run(
    client: Client, prompts: Sequence[list[bytes]], sequences: Iterator[int], *, at_once: int = 1
) -> None:
    """Admits them, so many at once, fills them, and frees them to the cache."""
    for first in range(0, len(prompts), at_once):
        running = list(zip(sequences, prompts[first : first + at_once], strict=False))
        for sequence, prompt in running:
            tokens = len(prompt) * BLOCK_TOKENS + 1
            client.step([operations.allocate(sequence, tokens, block_keys=prompt)])
            while client.tables.state(sequence) != pb.Sequence.RESIDENT:
                client.wait_events(1.0, completed_step=client.next_step - 1)
            client.step([operations.commit(sequence, 0, prompt)])
        client.step([operations.free([sequence for sequence, _ in running], pb.FreeRequest.CACHE)])


def told(client: Seen) -> list[str]:
    return [each.text for each in advise(client.usage()) if each.about == "little_to_give"]


def test_no_shared_prefix(client) -> None:
    run(client, [keys(f"alone {each}", 10) for each in range(SEQUENCES)], count(1))
    [text] = told(client)
    assert "60 sequences admitted, 0 swaps or drops" in text
    assert "of the 600 blocks that prompts ask for 0.0% are found" in text


def test_prompts_of_tens_of_tokens(client) -> None:
    run(client, [keys(f"short {each % 7}", 3) for each in range(SEQUENCES)], count(1))
    [text] = told(client)
    assert "48 tokens each, in whole blocks of 16" in text


def test_all_active_and_fitting(client) -> None:
    """A beginning that all share is found on the GPU; nothing ever goes below for want of room."""
    run(client, [keys("all", 5) + keys(f"each {each}", 5) for each in range(SEQUENCES)], count(1), at_once=6)
    [text] = told(client)
    assert "100.0% are on the GPU, and no session is kept" in text


def test_chats_that_come_back_to_a_pool_too_small_for_all(client) -> None:
    """Sixteen of nine blocks and more: they don't fit, and come back from the CPU tier."""
    sequences = count(1)
    for turn in range(4):
        run(client, [keys(f"chat {each}", 9 + turn) for each in range(16)], sequences)
    usage = client.usage()
    assert usage.prefix.cpu_blocks > 0
    assert told(client) == []


def test_more_at_once_than_fit(client) -> None:
    """What runs makes room for each other by swaps, though no prompt is found."""
    sequences = count(1)
    for _ in range(0, SEQUENCES, 2):
        out, other = next(sequences), next(sequences)
        for sequence in (out, other):
            prompt = keys(f"large {sequence}", 10)
            client.step([operations.allocate(sequence, 10 * BLOCK_TOKENS, block_keys=prompt)])
        client.step([operations.swap_out(out, 10 * BLOCK_TOKENS, pb.SwapRequest.KEEP)])
        client.step([operations.free([out, other], pb.FreeRequest.DISCARD)])
    assert told(client) == []
