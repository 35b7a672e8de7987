"""A quantised replica never passes for a lossless one, nor for one that was quantised otherwise.

The store, with its disk, has each under a namespace of its own. What they have in common here is all else:
block keys, sizes, the name of the session.
"""

from dataclasses import replace
from pathlib import Path

import torch

from kernels.layout import KVLayout
from kernels.quantized_layout import Quantization, QuantizedLayout
from kvstore.core.answers import LookupAnswer, StepAnswer
from kvstore.core.calls import Detach, Lookup
from kvstore.core.operations import Allocate, AllocateResult, Free
from kvstore.core.types import BlockKey, EngineId, Retention, SequenceId
from kvstore.server.clock import now
from kvstore.server.driver import Driver
from kvstore.server.layout import Layout
from tests.server.driving import Stopped, attach, commit_turn, config_for, key, run, step

BLOCKS, BLOCK_TOKENS = 3, 4
KEYS: tuple[BlockKey, ...] = tuple(key(number) for number in range(BLOCKS))
SOURCE = KVLayout(layers=2, kv_heads=2, head_dim=16, block_tokens=BLOCK_TOKENS, dtype=torch.bfloat16)
QUANTISED = [QuantizedLayout(source=SOURCE, quantization=kind) for kind in Quantization]
MODEL = bytes(32)
KINDS: list[KVLayout | QuantizedLayout] = [SOURCE, *QUANTISED]
# As engines attach with them. Of one size, so that nothing but the fingerprint holds them apart.
LAYOUTS = [
    Layout(
        block_tokens=BLOCK_TOKENS,
        block_bytes=SOURCE.block_bytes,
        ranks=1,
        fingerprint=layout.fingerprint(MODEL),
        description=layout.description(),
    )
    for layout in KINDS
]


def found(driver: Driver, engine: EngineId) -> int:
    lookup = Lookup(time=now(), engine=engine, block_keys=KEYS)
    return driver.ask(lookup, LookupAnswer).blocks_cached


def test_each_kind_of_replica_is_found_by_its_own_kind_alone(tmp_path: Path) -> None:
    """Whoever comes first; on the GPU, and from disk after a restart."""

    async def write(driver: Driver, writer: int) -> None:
        engines = [(await attach(driver, layout)).answer.engine for layout in LAYOUTS]
        commit_turn(driver, engines[writer], BLOCKS)
        assert [found(driver, engine) for engine in engines] == [
            BLOCKS if kind <= writer else 0 for kind in range(len(engines))
        ]
        for engine in engines:
            driver.detach(Detach(time=now(), engine=engine))
        await driver.end_transfers(10.0)

    config = config_for(tmp_path, disk_bytes=16 << 20)
    for writer in range(len(LAYOUTS)):

        async def life(driver: Driver, _: Stopped, writer: int = writer) -> None:
            await write(driver, writer)

        run(life, config)


def test_what_another_kind_has_is_not_given_to_an_allocation(tmp_path: Path) -> None:
    async def scenario(driver: Driver, _: Stopped) -> None:
        lossless, *others = [(await attach(driver, layout)).answer.engine for layout in LAYOUTS]
        commit_turn(driver, others[0], BLOCKS)
        asked = Allocate(sequence=SequenceId(9), token_count=4 * BLOCKS + 1, block_keys=KEYS, session="chat")
        free = Free(sequences=(SequenceId(9),), retention=Retention.DISCARD)
        for engine, number, cached in ((lossless, 1, 0), (others[1], 1, 0), (others[0], 4, BLOCKS)):
            [result] = driver.ask(step(engine, number, asked), StepAnswer).results
            assert isinstance(result, AllocateResult)
            assert result.cached_tokens == cached * BLOCK_TOKENS
            driver.ask(step(engine, number + 1, free), StepAnswer)

    run(scenario, config_for(tmp_path))


def test_nothing_but_the_fingerprint_holds_them_apart(tmp_path: Path) -> None:
    """So the tests above can fail: under one fingerprint one finds what the other has."""

    async def scenario(driver: Driver, _: Stopped) -> None:
        same = [replace(layout, fingerprint=LAYOUTS[0].fingerprint) for layout in LAYOUTS]
        writer, *readers = [(await attach(driver, layout)).answer.engine for layout in same]
        commit_turn(driver, writer, BLOCKS)
        assert [found(driver, engine) for engine in readers] == [BLOCKS] * len(readers)

    run(scenario, config_for(tmp_path))


def test_the_fingerprints_of_quantised_layouts_are_the_same_everywhere() -> None:
    """Caches on disk outlive programs."""
    told = {layout.quantization: layout.fingerprint(MODEL).hex() for layout in QUANTISED}
    assert told == {
        Quantization.FP8: "49eeec51ef0771d80da73eb036e0f41ca7c6cbca75e883f43caab1e5a3b2a446",
        Quantization.INT8: "ab5456d72db3ebdf1f4d061679fd8af071b73bad96c7ad55be940ad746ef1d4c",
    }
