"""The store of all tenants on one database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outbox_core.adapters.mongo.audit import MongoAuditLog
from outbox_core.adapters.mongo.boards import MongoBoards
from outbox_core.adapters.mongo.callers_session import CallersSessions
from outbox_core.adapters.mongo.cards import MongoCards
from outbox_core.adapters.mongo.consumers import MongoConsumers
from outbox_core.adapters.mongo.drain_progress import MongoDrainProgress
from outbox_core.adapters.mongo.effect_outbox import MongoEffectOutbox
from outbox_core.adapters.mongo.event_log import MongoEventLog
from outbox_core.adapters.mongo.lifecycle_stream import MongoLifecycleStream
from outbox_core.adapters.mongo.maintenance import MongoMaintenance
from outbox_core.adapters.mongo.slots import MongoSlots
from outbox_core.adapters.mongo.subscriptions import MongoSubscriptions
from outbox_core.adapters.mongo.transactions import MongoTransactions
from outbox_core.domain.identity import require_id
from outbox_core.ports.store import TenantStore

if TYPE_CHECKING:
    from pymongo.database import Database

    from outbox_core.domain.limits import Limits
    from outbox_core.ports.runtime import Clock, Entropy


class MongoStore:
    """Implements ports.store.Store over a database handle from `client.connect`."""

    def __init__(self, database: Database[dict[str, Any]], limits: Limits, clock: Clock, entropy: Entropy) -> None:
        self._database = database
        self._limits = limits
        self._clock = clock
        self._entropy = entropy
        self._callers = CallersSessions(database, clock)
        self._maintenance = MongoMaintenance(database, limits, entropy)

    @property
    def maintenance(self) -> MongoMaintenance:
        """See the port."""
        return self._maintenance

    def tenant(self, tenant_id: str) -> TenantStore:
        """See the port."""
        require_id(tenant_id, "tenant")
        database, limits, clock, entropy = self._database, self._limits, self._clock, self._entropy
        transactions = MongoTransactions(database, limits, self._callers)
        return TenantStore(
            tenant_id=tenant_id,
            log=MongoEventLog(database, tenant_id),
            progress=MongoDrainProgress(database, tenant_id, limits, entropy),
            effects=MongoEffectOutbox(database, tenant_id, limits, clock, entropy),
            subscriptions=MongoSubscriptions(database, tenant_id),
            boards=MongoBoards(database, tenant_id),
            cards=MongoCards(database, tenant_id),
            slots=MongoSlots(database, tenant_id, limits, entropy),
            stream=MongoLifecycleStream(database, tenant_id),
            consumers=MongoConsumers(database, tenant_id, limits, clock, entropy, transactions),
            audit=MongoAuditLog(database, tenant_id),
            transactions=transactions,
        )
