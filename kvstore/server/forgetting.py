"""A Forget from the call to its answer: names become ids, and the caller waits while the core works in lots.

Who gives up waiting stops nothing: the core goes on by its ticks.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from kvstore.core import events
from kvstore.core.answers import Answer, ForgetAnswer
from kvstore.core.calls import Forget, ForgetOn
from kvstore.core.errors import FieldInvalid
from kvstore.core.types import NamespaceId, WriterId
from kvstore.server.clock import now
from kvstore.server.decode_cached import ForgetCall
from kvstore.tiers.names import Names

__all__ = ["FORGET_SECONDS_MAX", "forget", "forget_event"]

# The longest that one call waits.
FORGET_SECONDS_MAX = 60.0
# While the disk is waited for.
PAUSE_SECONDS = 0.02

AnswerKind = TypeVar("AnswerKind", bound=Answer)


class Asking(Protocol):
    def ask(self, event: events.Event, kind: type[AnswerKind]) -> AnswerKind: ...


async def forget(
    store: Asking, event: Forget, wait_seconds: float, stopping: Callable[[], bool]
) -> ForgetAnswer:
    """The answer when it is done, or how far it is after so many seconds."""
    end = now() + min(wait_seconds, FORGET_SECONDS_MAX)
    answer = store.ask(event, ForgetAnswer)
    while not answer.done and now() < end and not stopping():
        # A lot takes milliseconds. Others are served between two.
        await asyncio.sleep(0 if answer.lots_left else PAUSE_SECONDS)
        answer = store.ask(ForgetOn(time=now(), forget=answer.forget), ForgetAnswer)
    return answer


def forget_event(call: ForgetCall, names: Names) -> Forget:
    """A typing error must not look like a success: what was never known is refused."""
    namespace, writers = NamespaceId(0), tuple[WriterId, ...]()
    if call.fingerprint:
        known = names.find_namespace(call.fingerprint)
        if known is None:
            remedy = "name the fingerprint of a layout that an engine has attached with"
            raise FieldInvalid("unknown", field="namespace", value=call.fingerprint.hex(), remedy=remedy)
        namespace = known
    if call.engine:
        writers = names.writers_of(call.engine)
        if not writers:
            remedy = "name an engine that has attached to this store, or whose blocks are on its disk"
            raise FieldInvalid("unknown", field="engine", value=f"engines/{call.engine}", remedy=remedy)
    return Forget(
        time=now(),
        session=call.session,
        tenant=call.tenant,
        namespace=namespace,
        writers=writers,
        whole_chain=call.whole_chain,
    )
