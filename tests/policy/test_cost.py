"""Drop or swap by cost: against the sums themselves, each kind of input alone, and at the edges."""

import math
from itertools import pairwise

import pytest

from kvstore.core.ports import Departure, LinkState, Restore
from kvstore.core.types import COPY, CPU, DISK, GPU, LOAD, READ, Link, LinkCost, StepNumber, StepTiming
from kvstore.policy.cost import CostModel, break_even_tokens
from kvstore.policy.prefill import PrefillCost

BLOCK_TOKENS, BLOCK_BYTES = 16, 2 << 20
BETA, GAMMA = 4e-5, 1.35e-9
GB = 1e9


def costs(speed: float, fixed: float = 1e-4, links: tuple[Link, ...] = (COPY, LOAD)) -> tuple[LinkCost, ...]:
    return tuple(
        LinkCost(source=source, target=target, bytes_per_second=speed, fixed_seconds=fixed)
        for source, target in links
    )


def model(speed: float = 20 * GB, *, fixed: float = 1e-4, load: float = 0.0, read: float = 0.0) -> CostModel:
    """One that has seen prompts of many lengths, and then, at 100 s, a load for some seconds."""
    policy = CostModel(64)
    links = costs(speed, fixed)
    policy.set_costs(BLOCK_BYTES, links + (costs(read, fixed, (READ,)) if read else ()))
    for n in range(60):
        tokens, before = 64 + 32 * n, 500 * (n % 7)
        context = before * tokens + tokens * tokens // 2
        timing = StepTiming(
            step=StepNumber(1),
            prefill_tokens=tokens,
            prefill_context=context,
            elapsed_seconds=BETA * tokens + GAMMA * context,
        )
        policy.note_timings((timing,), float(n))
    for n in range(500 if load else 0):
        timing = StepTiming(
            step=StepNumber(1), decode_sequences=1, decode_context=1, elapsed_seconds=load / 50
        )
        policy.note_timings((timing,), 90 + n / 50)
    return policy


def departure(
    tokens: int, *, ahead: bool = False, kept: int = 0, before: str = "", **more: LinkState
) -> Departure:
    blocks = -(-tokens // BLOCK_TOKENS)
    return Departure(
        time=100.0,
        tokens=tokens,
        tokens_kept=kept,
        blocks_out=0 if ahead else blocks,
        blocks_in=blocks - kept // BLOCK_TOKENS,
        chosen_before=before,
        **more,
    )


@pytest.mark.parametrize("gamma", [0.0, 1e-12, 1.35e-9, 1e-6])
@pytest.mark.parametrize("fixed", [0.0, 1e-4, 1e-2])
@pytest.mark.parametrize("moved", [0.0, 2e-5, 3.99e-5, 4e-5, 4.1e-5, 2e-4])
@pytest.mark.parametrize("price", [1.0, 2.5, 10.0])
def test_the_closed_form_is_where_the_inequality_turns(
    gamma: float, fixed: float, moved: float, price: float
) -> None:
    prefill = PrefillCost(alpha=0.0, beta=4e-5, gamma=gamma, pass_tokens=512)
    edge = break_even_tokens(prefill, fixed, moved, price)

    def swap_is_cheaper(tokens: float) -> bool:
        compute = prefill.beta * tokens + gamma * tokens * tokens / 2
        return price * compute > fixed + moved * tokens

    assert edge >= 0
    if math.isinf(edge):
        assert not any(swap_is_cheaper(10.0**power) for power in range(1, 9))
        return
    assert swap_is_cheaper(edge * 1.001 + 1e-6)
    assert edge < 1e-6 or not swap_is_cheaper(edge * 0.999)


@pytest.mark.parametrize("speed", [1 * GB, 5 * GB, 8 * GB, 20 * GB, 50 * GB])
@pytest.mark.parametrize("load", [0.0, 0.5, 0.8])
def test_the_choice_is_the_cheaper_sum_and_turns_at_the_length_that_is_told(
    speed: float, load: float
) -> None:
    policy = model(speed, load=load)
    kept = []
    for tokens in (64 << n for n in range(10)):
        verdict = policy.leave(departure(tokens))
        figures = dict(verdict.inputs)
        assert verdict.seconds <= verdict.other_seconds
        assert verdict.keeps == (tokens > figures["break_even_tokens"])
        assert figures["gpu_price"] == pytest.approx(1 / (1 - load), rel=0.12)
        kept.append(verdict.keeps)
    # Longer ones are worth more to keep: it turns once at the most.
    assert all(longer >= shorter for shorter, longer in pairwise(kept))


def test_the_sums_are_those_of_the_formula() -> None:
    verdict = model(20 * GB).leave(departure(1_024))
    moved = 64 * BLOCK_BYTES / (20 * GB) + 1e-4
    assert verdict.keeps
    assert verdict.seconds == pytest.approx(2 * moved, rel=1e-3)
    assert verdict.other_seconds == pytest.approx(BETA * 1_024 + GAMMA * 1_024**2 / 2, rel=0.02)


def test_copies_that_went_ahead_cost_nothing_any_more() -> None:
    policy = model(5 * GB)
    assert not policy.leave(departure(1_024)).keeps
    assert policy.leave(departure(1_024, ahead=True)).keeps


def test_a_busy_gpu_makes_it_dear_to_compute_again() -> None:
    assert not model(4 * GB).leave(departure(1_024)).keeps
    assert model(4 * GB, load=0.8).leave(departure(1_024)).keeps


def test_a_busy_link_and_what_waits_for_it_make_it_dear_to_move() -> None:
    policy = model(20 * GB)
    assert policy.leave(departure(1_024)).keeps
    assert not policy.leave(departure(1_024, load=LinkState(blocks_ahead=1_000))).keeps
    assert not policy.leave(
        departure(1_024, load=LinkState(busy_share=0.9), copy=LinkState(busy_share=0.9))
    ).keeps


def test_what_others_keep_on_the_gpu_is_neither_computed_nor_loaded() -> None:
    whole = dict(model().leave(departure(2_048)).inputs)
    part = model().leave(departure(2_048, kept=1_984))
    assert dict(part.inputs)["tokens_kept"] == 1_984
    assert not part.keeps
    assert whole["tokens_kept"] == 0


def test_a_sequence_is_not_moved_to_and_fro_at_the_edge() -> None:
    policy = model(6.3 * GB, fixed=0.0)
    edge = int(dict(policy.leave(departure(1_024)).inputs)["break_even_tokens"])
    assert 16 < edge < 20_000
    nearly, past = edge // BLOCK_TOKENS * BLOCK_TOKENS - 64, edge // BLOCK_TOKENS * BLOCK_TOKENS + 64
    assert not policy.leave(departure(nearly)).keeps
    assert policy.leave(departure(nearly, before="swap")).keeps
    assert policy.leave(departure(past)).keeps
    assert not policy.leave(departure(past, before="drop")).keeps
    assert policy.leave(departure(16 * edge, before="drop")).keeps


@pytest.mark.parametrize("known", ["nothing", "links", "prefill"])
def test_until_all_is_known_the_length_decides(known: str) -> None:
    policy = CostModel(64) if known != "prefill" else model()
    policy.set_costs(BLOCK_BYTES, costs(20 * GB) if known == "links" else ())
    assert not policy.leave(departure(64)).keeps
    assert policy.leave(departure(65)).keeps
    unknown = "what the links take" if known == "prefill" else "what prefill costs"
    assert policy.leave(departure(65)).reason == f"by length, {unknown} is not known yet"
    loaded = policy.load(restore(1_024, (CPU, 64)))
    assert loaded is not None
    assert (loaded.keeps, loaded.blocks, loaded.loads, loaded.other_loads) == (True, 64, 64, 64)
    assert (loaded.seconds, loaded.other_seconds) == (0.0, 0.0)
    assert loaded.reason == f"{unknown} is not known yet"


# ------------------------------------------------------------------------ what is loaded


def restore(tokens: int, *runs: tuple[object, int], **more: LinkState) -> Restore:
    return Restore(
        time=100.0,
        tokens=tokens,
        block_tokens=BLOCK_TOKENS,
        runs=runs,  # type: ignore[arg-type]  # pairs, as the test writes them
        **more,
    )


@pytest.mark.parametrize(
    ("speed", "read", "runs", "blocks"),
    [
        # A fast link: all of it. A slow one: nothing, or what is on the GPU already.
        (20 * GB, 0.0, ((CPU, 64),), 64),
        (1 * GB, 0.0, ((CPU, 64),), 0),
        (1 * GB, 0.0, ((GPU, 40), (CPU, 24)), 40),
        # What is on the GPU further down is used, and so is what stands before it.
        (1 * GB, 0.0, ((CPU, 4), (GPU, 40), (CPU, 20)), 44),
        # A fast CPU tier over a slow disk: up to where the disk begins.
        (20 * GB, 0.5 * GB, ((CPU, 40), (DISK, 24)), 40),
        (20 * GB, 10 * GB, ((CPU, 40), (DISK, 24)), 64),
    ],
)
def test_it_is_loaded_as_far_as_that_is_cheaper_than_to_compute(
    speed: float, read: float, runs: tuple[tuple[object, int], ...], blocks: int
) -> None:
    policy = model(speed, read=read)
    verdict = policy.load(restore(64 * BLOCK_TOKENS, *runs))
    assert verdict is not None
    assert (verdict.blocks, verdict.keeps) == (blocks, blocks == 64)
    assert verdict.seconds <= verdict.other_seconds * 1.06


@pytest.mark.parametrize("speed", [20 * GB, 3 * GB, 1 * GB])
def test_what_is_loaded_and_what_computed_is_told_of_both_ways_and_adds_up(speed: float) -> None:
    verdict = model(speed, load=0.5).load(restore(64 * BLOCK_TOKENS - 3, (GPU, 10), (CPU, 54)))
    assert verdict is not None
    told = dict(verdict.inputs)
    assert told["tokens"] == 64 * BLOCK_TOKENS - 3
    computed = {0.0: 54 * BLOCK_TOKENS - 3.0, 54.0: 0.0}
    for side in ("", "other_"):
        assert told[f"{side}compute_tokens"] == computed[told[f"{side}blocks_loaded"]]
    assert (told["blocks_loaded"], told["other_blocks_loaded"]) == (verdict.loads, verdict.other_loads)
    assert {verdict.loads, verdict.other_loads} == {0, 54}
    assert verdict.other_is_whole is not verdict.keeps
    compute, other = (told[f"{side}compute_seconds"] * told["gpu_price"] for side in ("", "other_"))
    assert told["gpu_price"] > 1.5
    assert verdict.seconds == pytest.approx(compute + told["cpu_to_gpu_seconds"])
    if verdict.keeps:
        assert verdict.other_seconds == pytest.approx(other)
    assert told["block_bytes"] == BLOCK_BYTES


def test_where_there_is_no_other_way_it_is_said_and_not_weighed_against_itself() -> None:
    verdict = model(20 * GB).load(restore(64 * BLOCK_TOKENS, (CPU, 4), (GPU, 60)))
    assert verdict is not None
    assert (verdict.loads, verdict.other_loads, verdict.other_seconds) == (4, 4, 0.0)
    assert "no other way" in verdict.reason


def test_both_sums_of_a_swap_add_up_from_what_is_told() -> None:
    verdict = model(20 * GB, load=0.5).leave(departure(4_096))
    told = dict(verdict.inputs)
    swap = told["gpu_to_cpu_seconds"] + told["cpu_to_gpu_seconds"]
    drop = told["compute_seconds"] * told["gpu_price"]
    sums = (swap, drop) if verdict.keeps else (drop, swap)
    assert (verdict.seconds, verdict.other_seconds) == pytest.approx(sums)
    assert told["compute_tokens"] == told["tokens"] - told["tokens_kept"]


def test_it_is_worth_more_to_load_the_longer_the_prefix_and_the_busier_the_gpu() -> None:
    slow = 3.1 * GB
    short, long = restore(512, (CPU, 32)), restore(32_768, (CPU, 2_048))
    assert model(slow).load(short).blocks == 0  # type: ignore[union-attr]
    assert model(slow).load(long).blocks == 2_048  # type: ignore[union-attr]
    assert model(slow, load=0.8).load(short).blocks == 32  # type: ignore[union-attr]


def test_behind_a_long_queue_it_is_computed() -> None:
    """Only so many loads at once are worth their while: B over the rate at which prefill makes KV."""
    policy = model(20 * GB)
    loads = [
        policy.load(restore(1_024, (CPU, 64), load=LinkState(blocks_ahead=64 * others)))
        for others in range(12)
    ]
    worth = sum(each is not None and each.blocks == 64 for each in loads)
    produced = BLOCK_BYTES / BLOCK_TOKENS / BETA
    assert worth == pytest.approx(20 * GB / produced, abs=1.1)
    assert 0 < worth < 12


# ---------------------------------------------------------------------------- what rests


def test_one_that_rests_is_held_for_as_long_as_two_transfers_over_the_share_of_need() -> None:
    policy = model(20 * GB)
    moved = 2 * (64 * BLOCK_BYTES / (20 * GB) + 1e-4)
    assert policy.hold_seconds(departure(1_024), 1.0) == pytest.approx(moved)
    assert policy.hold_seconds(departure(1_024), 0.1) == pytest.approx(10 * moved)
    assert policy.hold_seconds(departure(1_024), 0.0) == math.inf
