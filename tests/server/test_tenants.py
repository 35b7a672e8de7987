"""Several tenants on one service: what a flood of one leaves another, and how it is told."""

import pytest

from kvstore.client import Client, Layout, operations
from kvstore.client.keys import KeyChain
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import Service, until
from tests.server.scraping import scrape

BLOCK_TOKENS, BLOCK_BYTES = 4, 6000
LAYOUT = Layout(block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, fingerprint=bytes(32), description={})
# A frame has 8 KiB.
GPU_FRAMES, CPU_FRAMES = 32, 64


def prompt(number: int, blocks: int) -> tuple[list[int], KeyChain]:
    tokens = [number * 1000 + place for place in range(blocks * BLOCK_TOKENS)]
    keys = KeyChain(BLOCK_TOKENS)
    keys.extend(tokens)
    return tokens, keys


def turn(client: Client, number: int, tenant: str, blocks: int = 8) -> None:
    """A chat's turn, computed and ended."""
    tokens, keys = prompt(number, blocks)
    allocate = operations.allocate(
        number, len(tokens) + 1, block_keys=keys.keys, session=f"chat {number}", tenant=tenant
    )
    until(
        lambda: client.step([allocate]).results[0].allocate.outcome, lambda outcome: outcome == pb.OUTCOME_OK
    )
    client.step([operations.commit(number, 0, keys.keys), operations.free([number])])
    client.step([])


def found(client: Client, number: int, tenant: str, blocks: int = 8) -> int:
    """Blocks of a turn that are still there, in any tier."""
    _, keys = prompt(number, blocks)
    return client.lookup(keys.keys, tenant=tenant).blocks_cached


@pytest.mark.parametrize(("percent", "kept"), [(25, 8), (0, 0)])
def test_a_flood_of_one_tenant_leaves_another_its_share(make_service, percent: int, kept: int) -> None:
    """And where that is nothing, nothing."""
    flags = (
        "--tenant",
        "mine",
        "--tenant",
        "others",
        "--tenant-share",
        f"others={100 - percent}%",
        "--metrics",
        "0",
    )
    service: Service = make_service(*flags, gpu_frames=GPU_FRAMES, cpu_frames=CPU_FRAMES).start()
    with Client(str(service.socket)) as client:
        client.attach(LAYOUT, build="test")
        turn(client, 1, "mine")
        taken = 'kvstore_tenant_frames{tenant="mine",tier="cpu"}'
        until(lambda: scrape(service)[taken], lambda frames: frames == 8)
        # Five times what the tier holds.
        for number in range(2, 42):
            turn(client, number, "others")
        assert found(client, 1, "mine") == kept
        assert found(client, 2, "others") == 0
        usage = client.operator.usage()
    by_name = {tenant.tenant: {each.tier: each for each in tenant.frames} for tenant in usage.tenants}
    assert by_name["mine"][pb.TIER_CPU].frames_taken == kept
    assert by_name["mine"][pb.TIER_CPU].frames_guaranteed == CPU_FRAMES * percent // 100
    assert by_name["others"][pb.TIER_CPU].frames_guaranteed == CPU_FRAMES * (100 - percent) // 100
    told = scrape(service)
    guaranteed = 'kvstore_tenant_frames_guaranteed{tenant="mine",tier="gpu"}'
    assert told[guaranteed] == GPU_FRAMES * percent // 100
    assert told['kvstore_tenant_sequences_waiting{tenant="others"}'] == 0


def test_one_tenant_has_all_and_nothing_is_told_of_it(lent: Service) -> None:
    with Client(str(lent.socket)) as client:
        client.attach(LAYOUT, build="test")
        assert not client.operator.usage().tenants
