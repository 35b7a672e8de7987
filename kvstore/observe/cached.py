"""Facts of cached content that is named by key or by session: asked for, noted on disk, deleted there."""

from collections.abc import Iterable, Iterator

from kvstore.core.answers import Answer, ForgetAnswer, LookupAnswer, PrefetchAnswer, RetainAnswer
from kvstore.core.calls import Forget, Lookup, Prefetch, Retain
from kvstore.core.effects import DiskDelete, DiskNote, SessionsForgotten, SessionsKept
from kvstore.core.types import BlockKey
from kvstore.observe.facts import Content, Fact, Held
from kvstore.observe.words import count, event_words

__all__ = ["asked", "by_key", "deleted", "looked_up", "noted"]


def looked_up(event: Lookup, answer: LookupAnswer) -> Iterator[Fact]:
    found = event.block_keys[: answer.blocks_cached]
    text = f"engine {event.engine} looks up {count(len(event.block_keys), 'block')}"
    if found:
        yield Fact(text=f"{text}: cached", blocks=by_key(found))
    if len(found) < len(event.block_keys):
        yield Fact(text=f"{text}: not cached", blocks=by_key(event.block_keys[len(found) :]))


def asked(event: Prefetch | Retain | Forget, answer: Answer) -> Fact:
    """What is asked for by keys concerns these blocks, and what by name this session."""
    told = {
        PrefetchAnswer: lambda answer: f"{count(answer.blocks_started, 'block')} on their way",
        RetainAnswer: lambda answer: f"{count(answer.blocks_retained, 'block')} retained",
        ForgetAnswer: lambda answer: f"{count(answer.blocks_forgotten, 'block')} forgotten so far",
    }[type(answer)](answer)
    keys = () if isinstance(event, Forget) else event.block_keys
    sessions = frozenset({event.session}) if event.session else frozenset()
    return Fact(text=f"{event_words(event)}: {told}", blocks=by_key(keys), sessions=sessions)


def noted(note: DiskNote) -> Iterator[Fact]:
    match note:
        case SessionsKept():
            for session in note.sessions:
                text = f"disk keeps session {session.name}, {count(len(session.keys), 'block')}"
                yield Fact(text=text, sessions=frozenset({session.name}))
        case SessionsForgotten():
            for name in note.sessions:
                yield Fact(text=f"disk forgets session {name.name}", sessions=frozenset({name.name}))


def deleted(delete: DiskDelete) -> Fact:
    return Fact(text="deleted from disk", blocks=by_key(stored.key for stored in delete.keys))


def by_key(keys: Iterable[BlockKey]) -> tuple[Held, ...]:
    return tuple(Held(Content(key)) for key in keys)
