"""Faults planted between the store and its world: each is found, made small, and told of the right block."""

import msgspec
import pytest

from kvstore.core.answers import StepAnswer
from kvstore.core.calls import Attach, Forget, Step
from kvstore.core.config import StoreConfig
from kvstore.core.effects import Effects, Transfer
from kvstore.core.events import Event, TransferEnded
from kvstore.core.operations import AllocateResult
from kvstore.core.store import Store
from kvstore.core.types import Frame, NamespaceId, Outcome, StepNumber, TenantId, Tier
from kvstore.sim.attempts import Failure, attempt, attempt_seed
from kvstore.sim.report import report
from kvstore.sim.shrink import shrink

TURNS = 150
SEEDS = range(24)
RUNS_MAX = 40


class Planted(Store):
    """A store with a fault; `touched` holds the GPU frames that it has done wrong with."""

    last: "Planted"

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.touched: set[int] = set()
        Planted.last = self

    def handle(self, event: Event) -> Effects:
        return self.spoil_effects(super().handle(self.spoil_event(event)))

    def spoil_event(self, event: Event) -> Event:
        return event

    def spoil_effects(self, effects: Effects) -> Effects:
        return effects


class SkipsFences(Planted):
    """Takes a step for completed when it is sent: frames move while kernels still write them."""

    def spoil_event(self, event: Event) -> Event:
        if isinstance(event, Step):
            return msgspec.structs.replace(event, completed_step=StepNumber(event.step - 1))
        return event

    def spoil_effects(self, effects: Effects) -> Effects:
        for transfer in effects.transfers:
            if transfer.source is Tier.GPU:
                self.touched |= set(transfer.source_frames)
        if isinstance(effects.answer, StepAnswer):
            for result in effects.answer.results:
                if isinstance(result, AllocateResult):
                    self.touched |= set(result.block_table)
        return effects


class GivesAFrameToTwo(Planted):
    """The first frame that was ever given is given again, in the place of another."""

    first = -1

    def spoil_effects(self, effects: Effects) -> Effects:
        answer = effects.answer
        if not isinstance(answer, StepAnswer):
            return effects
        results = [self._spoil(each) if isinstance(each, AllocateResult) else each for each in answer.results]
        return msgspec.structs.replace(
            effects, answer=msgspec.structs.replace(answer, results=tuple(results))
        )

    def _spoil(self, result: AllocateResult) -> AllocateResult:
        if result.outcome is not Outcome.OK or not result.block_table or result.first_block:
            return result
        if self.first < 0:
            self.first = result.block_table[-1]
            return result
        if self.first in result.block_table:
            return result
        self.touched.add(self.first)
        return msgspec.structs.replace(result, block_table=(*result.block_table[:-1], Frame(self.first)))


class MixesUpFrames(Planted):
    """What comes up to the GPU goes into each other's frames."""

    def spoil_effects(self, effects: Effects) -> Effects:
        transfers = tuple(self._spoil(each) for each in effects.transfers)
        return msgspec.structs.replace(effects, transfers=transfers)

    def _spoil(self, transfer: Transfer) -> Transfer:
        if transfer.target is not Tier.GPU or len(transfer.target_frames) < 2:
            return transfer
        self.touched |= set(transfer.target_frames)
        return msgspec.structs.replace(transfer, target_frames=transfer.target_frames[::-1])


class TrustsFailedCopies(Planted):
    """Takes every transfer for good that has not failed whole."""

    def spoil_event(self, event: Event) -> Event:
        if isinstance(event, TransferEnded) and event.failed:
            return msgspec.structs.replace(event, failed=())
        return event


class KnowsNoNamespaces(Planted):
    """Blocks of one model are found by engines of another."""

    def spoil_event(self, event: Event) -> Event:
        if isinstance(event, Attach):
            return msgspec.structs.replace(event, namespace=NamespaceId(1))
        return event


class ForgetsOthers(Planted):
    """Takes a Forget for one of a session that nobody has, and says that it is done."""

    def spoil_event(self, event: Event) -> Event:
        if isinstance(event, Forget):
            return Forget(time=event.time, session="nobody's")
        return event


class BringsBackWhatItForgot(Planted):
    """What was forgotten is published again by those who still have it."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.memory.prefix._count_unbarred = lambda rows: rows.size  # type: ignore[method-assign]


def first_failure(
    fault: type[Planted], monkeypatch: pytest.MonkeyPatch, says: str = "", **given: object
) -> Failure:
    """The first failure whose message says so."""
    monkeypatch.setattr("kvstore.sim.stores.Store", fault)
    sizes = {"cpu_frames": 12, "disk_frames": 20, "restart_share": 0.0, "single_share": 0.0} | given
    for seed in SEEDS:
        result = attempt_seed(seed, TURNS, **sizes)
        if isinstance(result, Failure) and says in result.message:
            return result
    raise AssertionError(f"{fault.__name__} is not found")


def find(
    fault: type[Planted], monkeypatch: pytest.MonkeyPatch, says: str = "", **given: object
) -> tuple[Failure, Failure]:
    """That failure, and the smallest run that fails like it."""
    result = first_failure(fault, monkeypatch, says, **given)
    smallest = shrink(result, RUNS_MAX)
    # The same again, so that `Planted.last` is the store of this run.
    again = attempt(smallest.config, smallest.schedule)
    assert isinstance(again, Failure)
    assert again.message == smallest.message
    return result, again


@pytest.mark.parametrize(
    ("fault", "says"),
    # Streams of two engines meet by many a chance, so such a run has little that can be left out.
    [(SkipsFences, "a transfer is started while"), (GivesAFrameToTwo, ""), (MixesUpFrames, "")],
)
def test_a_fault_is_found_and_its_story_names_the_block(
    fault: type[Planted], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, smallest = find(fault, monkeypatch, says, lag=3)
    assert len(smallest.schedule) < len(original.schedule) / 3
    frames = {frame for tier, frame in smallest.places if tier is Tier.GPU}
    assert frames
    assert frames & Planted.last.touched
    text = report(original, smallest)
    assert text.startswith(f"seed {original.config.seed}: {original.message}")
    (story,) = text.split("the story of ")[1:]
    for frame in frames:
        assert f"GPU frame {frame}" in story
    assert "Allocate gives block" in story


def test_blocks_that_failed_on_one_rank_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = first_failure(TrustsFailedCopies, monkeypatch, "holds garbage", ranks=3, fail_share=0.3)
    assert "of rank" in failure.message


def test_blocks_of_another_namespace_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    _, smallest = find(KnowsNoNamespaces, monkeypatch, "(namespace 2, tenant", namespaces=2)
    assert smallest.config.namespaces == 2
    assert "holds block" in smallest.message


@pytest.mark.parametrize("fault", [ForgetsOthers, BringsBackWhatItForgot])
def test_what_was_forgotten_is_not_read(fault: type[Planted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.sim.stores.Store", fault)
    sizes = {"cpu_frames": 12, "disk_frames": 20, "forget_share": 0.05}
    results = (attempt_seed(seed, TURNS, **sizes) for seed in SEEDS)
    assert any(isinstance(each, Failure) and "what was forgotten" in each.message for each in results)


def test_tenants_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are the same for a store that is set up wrongly."""

    def one_tenant(**numbers: object) -> StoreConfig:
        both = numbers | {"tenants": {"a": TenantId(1), "b": TenantId(1)}}
        return StoreConfig(**both)  # type: ignore[arg-type]  # as the world calls it

    monkeypatch.setattr("kvstore.sim.stores.StoreConfig", one_tenant)
    first_failure(Planted, monkeypatch, "tenant 2): GPU frame")
