"""An operator who has things forgotten, and asks until it is done."""

import random

import msgspec

from kvstore.core.answers import ForgetAnswer
from kvstore.core.calls import Forget, ForgetOn
from kvstore.core.errors import TooManyForgets
from kvstore.core.forgetting import RETRY_SECONDS
from kvstore.core.types import ForgetId, NamespaceId, WriterId
from kvstore.sim.stores import TENANTS
from kvstore.sim.world import World
from kvstore.sim.wrong import Wrong, expect

__all__ = ["Forgets"]

ASKED_MAX = 200


class Forgets:
    """Those that are not done, as far as their caller knows."""

    def __init__(self, world: World, namespaces: int) -> None:
        self._world, self._namespaces = world, namespaces
        self._open: dict[ForgetId, None] = {}

    def begin(self, rng: random.Random, engines: int) -> str:
        """One that is drawn; what it is, in words."""
        world = self._world
        event = self._draw(rng, engines)
        try:
            answer = world.handle(event).answer
        except TooManyForgets:
            asked_again = world.time < world.sync_failed_time + RETRY_SECONDS
            is_waited_for = bool(world.syncs or world.under_way or asked_again)
            expect(is_waited_for, "Forgets are refused, and none is waited for")
            return "a Forget is refused: too many"
        if not isinstance(answer, ForgetAnswer):
            raise Wrong(f"Forget is answered with {answer}")
        tenant = 0
        if event.tenant or event.session:
            tenant = TENANTS[event.tenant or "a"]
        world.shadow.origins.begin_forget(answer.forget, event, tenant, world.events)
        self._open[answer.forget] = None
        self._take(answer)
        given = {name: value for name, value in msgspec.structs.asdict(event).items() if value}
        del given["time"]
        return f"Forget {answer.forget}: {given}"

    def _draw(self, rng: random.Random, engines: int) -> Forget:
        time, tenant = self._world.time, rng.choice(["", "a", "b"])
        namespace = NamespaceId(rng.randint(0, self._namespaces))
        kind = rng.random()
        if kind < 0.6:
            session, whole = rng.choice(["s0", "s1", "s2"]), rng.random() < 0.3
            return Forget(time=time, session=session, tenant=tenant, namespace=namespace, whole_chain=whole)
        if kind < 0.8:
            writers = tuple({WriterId(max(1, engines - rng.randrange(4))) for _ in range(2)})
            return Forget(time=time, writers=writers, tenant=tenant)
        if not tenant:
            namespace = NamespaceId(rng.randint(1, self._namespaces))
        return Forget(time=time, tenant=tenant, namespace=namespace)

    def ask(self) -> None:
        """All that are open go on."""
        for id in list(self._open):
            answer = self._world.handle(ForgetOn(time=self._world.time, forget=id)).answer
            if not isinstance(answer, ForgetAnswer):
                raise Wrong(f"ForgetOn is answered with {answer}")
            self._take(answer)

    def _take(self, answer: ForgetAnswer) -> None:
        if answer.done:
            self._open.pop(answer.forget, None)
            self._world.shadow.origins.end_forget(answer.forget)

    def crash(self) -> None:
        self._open.clear()

    def finish(self) -> None:
        """Nothing moves any more, and the disk works: each comes to its end."""
        for _ in range(ASKED_MAX):
            if not self._open:
                return
            self._world.tick(1.0)
            self._world.drain()
            self.ask()
        raise Wrong(f"Forgets {list(self._open)} are never done")
