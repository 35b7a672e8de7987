"""What a run has decided, as far as its journal still has it.

A whole run decides the same once more: all of it is known. Of one whose beginning is overwritten there is
what answers have told: swaps and drops that engines asked for. Loads, evictions, writes and what the store
moved by itself are told to nobody, so they are known only where everything before them is.
"""

from dataclasses import dataclass

from kvstore.core.answers import StepAnswer
from kvstore.core.calls import Forget, Step
from kvstore.core.effects import Effects
from kvstore.core.forget_scope import hide_decisions, scope_of
from kvstore.core.operations import SwapResult
from kvstore.core.store import Store
from kvstore.core.types import EngineId, StepNumber
from kvstore.observe.making import make_store
from kvstore.observe.reading import Run
from kvstore.observe.records import Entry
from kvstore.observe.replay import remake

__all__ = ["Recalled", "recall_run"]


@dataclass(frozen=True, slots=True)
class Recalled:
    """A store that can be asked what was decided; and from when to when, on its clock, entries were kept."""

    store: Store
    begin: float
    end: float


def recall_run(run: Run) -> Recalled:
    """`run.torn` is known after it."""
    start = run.heading.start_time
    if run.whole:
        store = remake(run)
        return Recalled(store, start, max(start, store.memory.now))
    store, begin, end = make_store(run.heading), start, start
    steps: dict[EngineId, StepNumber] = {}
    for entry in run.entries():
        end = entry.event.time
        if entry.number == run.heading.first_entry:
            begin = end
        _note(store, entry, steps)
    return Recalled(store, begin, end)


def _note(store: Store, entry: Entry, steps: dict[EngineId, StepNumber]) -> None:
    """Nothing of a refused event, and nothing twice of a step that was asked again."""
    event, outcome = entry.event, entry.outcome
    if not isinstance(outcome, Effects):
        return
    if isinstance(event, Forget):
        hide_decisions(store.config, store.memory.decisions, scope_of(store.config, event))
    if isinstance(event, Step):
        if event.step <= steps.get(event.engine, 0):
            return
        steps[event.engine] = event.step
    if isinstance(outcome.answer, StepAnswer):
        for result in outcome.answer.results:
            if isinstance(result, SwapResult) and result.decision is not None:
                store.memory.decisions.note(result.decision)
