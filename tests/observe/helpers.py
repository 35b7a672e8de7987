"""Stores whose events are journaled, and what the program says of such a journal."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner, Result

from kvstore.cli.main import app
from kvstore.core.effects import Effects
from kvstore.core.events import Event
from kvstore.core.store import Store
from kvstore.observe.codec import encode
from kvstore.observe.folder import JournalFolder
from kvstore.observe.framing import frame
from kvstore.observe.journal import Journal
from kvstore.observe.making import heading_of
from kvstore.observe.records import Heading, Record

__all__ = ["JOURNAL_BYTES", "heading_for", "journaled", "replay", "write_records"]

JOURNAL_BYTES = 1 << 22


def heading_for(store: Store, epoch: int = 7) -> Heading:
    """Of a store as `make_store` of the core's tests makes them, in a world whose clock begins at 100."""
    policy = store.swap_policy
    return heading_of(
        store.config, store.memory.eviction, policy, build="test", store_epoch=epoch, start_time=100.0
    )


@contextmanager
def journaled(
    store: Store, path: Path, *, epoch: int = 7, bytes_max: int = JOURNAL_BYTES
) -> Iterator[Journal]:
    """All that the store handles within is written down."""
    handle = store.handle

    def handle_and_write(event: Event) -> Effects:
        try:
            effects = handle(event)
        except Exception as error:
            journal.write(event, error)
            raise
        journal.write(event, effects)
        return effects

    with JournalFolder.claim(path, bytes_max) as folder:
        journal = Journal(folder, heading_for(store, epoch))
        store.handle = handle_and_write  # type: ignore[method-assign]
        try:
            yield journal
        finally:
            del store.handle
            journal.close()


def write_records(path: Path, *records: Record) -> None:
    path.write_bytes(b"".join(frame(encode(record)) for record in records))


def replay(path: Path, *flags: str) -> Result:
    """`kvstore replay` in this process; a refusal is its exception."""
    return CliRunner().invoke(app, ["replay", str(path), *flags])
