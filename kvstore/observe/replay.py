"""A run once more: its events through a fresh store, each outcome compared with what was written down."""

from dataclasses import dataclass

from kvstore.core.errors import CheckFailed
from kvstore.core.invariants import check_invariants
from kvstore.core.store import Store
from kvstore.observe.making import make_store
from kvstore.observe.reading import Run
from kvstore.observe.records import Entry, Failure, Outcome, Refusal, outcome_of

__all__ = ["Difference", "Replayed", "remake", "replay"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first entry that came out otherwise. `found`: what came out now."""

    entry: Entry
    found: Outcome


@dataclass(frozen=True, slots=True)
class Replayed:
    """`failure`: the store stopped at its last entry, now as then."""

    entries: int
    difference: Difference | None = None
    failure: Failure | None = None


def replay(run: Run, *, check_each: bool = False) -> Replayed:
    """For a whole run. With `check_each` every invariant must hold after every event; slow."""
    store = make_store(run.heading)
    count = 0
    for entry in run.entries():
        found = _handle(store, entry, check_each)
        count += 1
        if not _same(entry.outcome, found):
            return Replayed(count, difference=Difference(entry, found))
        if isinstance(found, Failure):
            return Replayed(count, failure=found)
    return Replayed(count)


def remake(run: Run) -> Store:
    """The store as it was at the end of a whole run, with what it remembers beside its state."""
    store = make_store(run.heading)
    for entry in run.entries():
        _handle(store, entry, check_each=False)
    return store


def _handle(store: Store, entry: Entry, check_each: bool) -> Outcome:
    try:
        effects = store.handle(entry.event)
    except Exception as error:
        return outcome_of(error)
    if check_each:
        try:
            check_invariants(store)
        except CheckFailed as error:
            return outcome_of(error)
    return effects


def _same(recorded: Outcome, found: Outcome) -> bool:
    if isinstance(recorded, Refusal) and isinstance(found, Refusal):
        return recorded.reason == found.reason
    if isinstance(recorded, Failure) and isinstance(found, Failure):
        # A later version may word it otherwise.
        return recorded.kind == found.kind
    return recorded == found
