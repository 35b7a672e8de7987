"""What a Forget names, and whom that concerns."""

from msgspec import Struct

from kvstore.core.bounds import check_tenant
from kvstore.core.calls import Forget
from kvstore.core.config import StoreConfig
from kvstore.core.decisions import Decisions
from kvstore.core.engines import Engine, Publish, TurnEnd
from kvstore.core.errors import FieldInvalid
from kvstore.core.sequences import session_owner
from kvstore.core.types import DomainId, NamespaceId, TenantId, WriterId, domain_parts

__all__ = ["Scope", "hide_decisions", "scope_of"]


class Scope(Struct, frozen=True):
    """Of these tenants, and of what else is named. `whole`: of a session also what others use."""

    tenants: tuple[TenantId, ...]
    namespace: NamespaceId
    session: str
    writers: tuple[WriterId, ...]
    whole: bool

    def covers(self, domain: DomainId) -> bool:
        namespace, tenant = domain_parts(domain)
        return tenant in self.tenants and self.namespace in (0, namespace)

    def covers_session(self, domain: DomainId, name: str) -> bool:
        """What one writer has left says nothing of the sessions that it wrote for."""
        return not self.writers and self.session in ("", name) and self.covers(domain)

    def covers_work(self, engine: Engine, domain: DomainId, session: str) -> bool:
        """Of an engine that is there: what it does for this session, or for none."""
        writes = not self.writers or engine.writer in self.writers
        return writes and self.session in ("", session) and self.covers(domain)

    def covers_fence(self, engine: Engine, fence: object) -> bool:
        """What a passed fence would publish, or keep for the next turn."""
        if isinstance(fence, TurnEnd):
            return self.covers_work(engine, fence.domain, fence.session)
        if not isinstance(fence, Publish) or not self.covers(fence.domain):
            return False
        if self.session:
            return fence.owner == session_owner(fence.domain, self.session)
        return not self.writers or engine.writer in self.writers


def scope_of(config: StoreConfig, event: Forget) -> Scope:
    """What the call names. Raises the refusal that it deserves."""
    check_tenant(config, event.tenant)
    if not (event.session or event.tenant or event.namespace or event.writers):
        raise FieldInvalid(
            "nothing is named",
            field="session",
            value="",
            remedy="name a session, a tenant, a namespace or an engine",
        )
    if event.session and event.writers:
        raise FieldInvalid(
            "an engine is named as well",
            field="session",
            value=event.session,
            remedy="forget a session, or what an engine wrote",
        )
    tenants = tuple(config.tenants.values())
    if event.tenant or event.session:
        tenants = (config.tenants[event.tenant or config.default_tenant],)
    return Scope(
        tenants=tenants,
        namespace=event.namespace,
        session=event.session,
        writers=event.writers,
        whole=event.whole_chain,
    )


def hide_decisions(config: StoreConfig, decisions: Decisions, scope: Scope) -> None:
    """What was decided of those in scope is not told any more."""
    names = [name for name, tenant in config.tenants.items() if tenant in scope.tenants]
    # Where there is one tenant a decision names none.
    decisions.forget(scope.session, names if len(config.tenants) > 1 else ("",), scope.covers)
