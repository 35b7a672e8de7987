"""Whose each version of a block is, who else has it in a prompt, and what was forgotten.

The oracle of Forget. What was forgotten may be read by those who had it before; whoever is given a table
after the call must not find it there, before a restart or after it. Of a Forget that a crash has cut short
nothing is promised.
"""

from dataclasses import dataclass, field

from kvstore.core.calls import Forget
from kvstore.core.types import ForgetId, NamespaceId, WriterId
from kvstore.sim.texts import Content
from kvstore.sim.work import Space

__all__ = ["Origin", "Origins"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Who has committed it first. `session` is empty for a lone sequence."""

    space: Space
    block: Content
    session: str
    engine: int


_Filled = tuple[int, Content]


@dataclass(slots=True)
class Origins:
    # By generation and tokens: forks go on from a part-filled block in ways of their own.
    _first: dict[_Filled, Origin] = field(default_factory=dict)
    # Sessions, and lone sequences, that have had the block in a prompt or a commit.
    _users: dict[tuple[Space, Content], set[str]] = field(default_factory=dict)
    # Likewise: the event after which nobody can find it.
    _forgotten: dict[_Filled, int] = field(default_factory=dict)
    _begun: dict[ForgetId, dict[_Filled, int]] = field(default_factory=dict)

    def commit(self, generation: int, origin: Origin) -> None:
        self._first.setdefault((generation, origin.block), origin)

    def use(self, space: Space, block: Content, user: str) -> None:
        self._users.setdefault((space, block), set()).add(user)

    def begin_forget(self, id: ForgetId, forget: Forget, tenant: int, at: int) -> None:
        """`tenant` 0: all."""
        scope = {
            filled: at for filled, origin in self._first.items() if self._is_meant(origin, forget, tenant)
        }
        self._begun.setdefault(id, {}).update(scope)

    def end_forget(self, id: ForgetId) -> None:
        """It is done: durably."""
        self._forgotten |= self._begun.pop(id, {})

    def crash(self) -> None:
        self._begun.clear()

    def is_forgotten(self, generation: int, block: Content, granted_at: int) -> bool:
        """Whether one that got its table then may not find it."""
        filled, forgotten = (generation, block), [self._forgotten, *self._begun.values()]
        return any(granted_at > each[filled] for each in forgotten if filled in each)

    @property
    def forgotten_count(self) -> int:
        return len(self._forgotten)

    def _is_meant(self, origin: Origin, forget: Forget, tenant: int) -> bool:
        space = origin.space
        if tenant not in (0, space.tenant) or forget.namespace not in (0, NamespaceId(space.namespace)):
            return False
        if forget.writers:
            return WriterId(origin.engine) in forget.writers
        if not forget.session:
            return True
        alone = self._users.get((space, origin.block)) == {forget.session}
        return origin.session == forget.session and (alone or forget.whole_chain)
