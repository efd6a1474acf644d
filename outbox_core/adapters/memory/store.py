"""The twin as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.adapters.memory.audit import MemoryAuditLog
from outbox_core.adapters.memory.boards import MemoryBoards
from outbox_core.adapters.memory.cards import MemoryCards
from outbox_core.adapters.memory.consumers import MemoryConsumers
from outbox_core.adapters.memory.database import MemoryDatabase
from outbox_core.adapters.memory.drain_progress import MemoryDrainProgress
from outbox_core.adapters.memory.effect_outbox import MemoryEffectOutbox
from outbox_core.adapters.memory.event_log import MemoryEventLog
from outbox_core.adapters.memory.lifecycle_stream import MemoryLifecycleStream
from outbox_core.adapters.memory.maintenance import MemoryMaintenance
from outbox_core.adapters.memory.slots import MemorySlots
from outbox_core.adapters.memory.subscriptions import MemorySubscriptions
from outbox_core.adapters.memory.transactions import MemoryTransactions
from outbox_core.domain.identity import require_id
from outbox_core.ports.store import TenantStore

if TYPE_CHECKING:
    from outbox_core.adapters.memory.clock import MemoryClock
    from outbox_core.domain.limits import Limits
    from outbox_core.ports.runtime import Clock, Entropy


class MemoryStore:
    """Implements ports.store.Store within one process.

    Args:
        limits: those of the deployment.
        clock: the server's clock, and the process's too where `local` is not given.
        entropy: where claim ids and slot tokens come from.
        local: the process's own clock.
        database: another store's, to stand beside it as a second process would.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        clock: MemoryClock,
        entropy: Entropy,
        local: Clock | None = None,
        database: MemoryDatabase | None = None,
    ) -> None:
        self.database = database or MemoryDatabase(clock)
        self._limits = limits
        self._clock = local or clock
        self._entropy = entropy
        self._maintenance = MemoryMaintenance(self.database, limits, entropy)

    @property
    def maintenance(self) -> MemoryMaintenance:
        """See the port."""
        return self._maintenance

    def tenant(self, tenant_id: str) -> TenantStore:
        """See the port."""
        require_id(tenant_id, "tenant")
        return TenantStore(
            tenant_id=tenant_id,
            log=MemoryEventLog(self.database, tenant_id),
            progress=MemoryDrainProgress(
                self.database, tenant_id, MemorySlots(self.database, tenant_id, self._limits, self._entropy)
            ),
            effects=MemoryEffectOutbox(self.database, tenant_id, self._limits, self._clock, self._entropy),
            subscriptions=MemorySubscriptions(self.database, tenant_id),
            boards=MemoryBoards(self.database, tenant_id),
            cards=MemoryCards(self.database, tenant_id),
            slots=MemorySlots(self.database, tenant_id, self._limits, self._entropy),
            stream=MemoryLifecycleStream(self.database, tenant_id),
            consumers=MemoryConsumers(self.database, tenant_id, self._limits),
            audit=MemoryAuditLog(self.database, tenant_id),
            transactions=MemoryTransactions(self.database),
        )
