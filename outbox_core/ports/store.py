"""A store, and the handle of one tenant: no other call of a store can be made without a tenant (L21)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from outbox_core.ports.audit import AuditLog
    from outbox_core.ports.boards import Boards
    from outbox_core.ports.cards import Cards
    from outbox_core.ports.consumers import Consumers
    from outbox_core.ports.drain_progress import DrainProgress
    from outbox_core.ports.effect_outbox import EffectOutbox
    from outbox_core.ports.event_log import EventLog
    from outbox_core.ports.lifecycle_stream import LifecycleStream
    from outbox_core.ports.maintenance import Maintenance
    from outbox_core.ports.slots import Slots
    from outbox_core.ports.subscriptions import Subscriptions
    from outbox_core.ports.transactions import Transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStore:
    """Every port, bound to one tenant; it never returns or changes another's row."""

    tenant_id: str
    log: EventLog
    progress: DrainProgress
    effects: EffectOutbox
    subscriptions: Subscriptions
    boards: Boards
    cards: Cards
    slots: Slots
    stream: LifecycleStream
    consumers: Consumers
    audit: AuditLog
    transactions: Transactions


class Store(Protocol):
    """All tenants of one database."""

    @property
    def maintenance(self) -> Maintenance:
        """The named calls that span tenants."""
        ...

    def tenant(self, tenant_id: str) -> TenantStore:
        """Return the handle of a tenant; raise InvalidInputError where that is no id. No I/O."""
        ...
