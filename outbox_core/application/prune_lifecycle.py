"""Remove what every consumer has acknowledged and is older than the retention, in bounded batches."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_core.domain.limits import TICK_SHARE
from outbox_core.domain.retention import floor_of

if TYPE_CHECKING:
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import Store, TenantStore

_PAGE = 1_000
_log = logging.getLogger("outbox.lifecycle")


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many events and dead letters were removed."""

    events: int
    letters: int


def prune_lifecycle(store: Store, runtime: Runtime) -> Pruned | None:
    """Prune each tenant's stream, PRUNE_BATCH removals in all; None where another beat's tick has just done so (L13).

    A registration that races this one finds the rows gone that it wanted, and reconciles (L12).
    """
    limits = runtime.limits
    if not store.maintenance.tick_due("prune", limits.prune_tick * TICK_SHARE):
        return None
    events, letters, after = 0, 0, ""
    while page := store.maintenance.lifecycle_tenants(after, _PAGE):
        for tenant_id in page:
            left = limits.prune_batch - events - letters
            if left <= 0:
                return Pruned(events, letters)
            pruned = _prune(store.tenant(tenant_id), runtime, left)
            events, letters = events + pruned.events, letters + pruned.letters
        after = page[-1]
    return Pruned(events, letters)


def _prune(store: TenantStore, runtime: Runtime, limit: int) -> Pruned:
    # The head first: a consumer that registers after it cannot have acknowledged more.
    head = store.stream.head()
    floor = floor_of(store.consumers.all(), head)
    retention = runtime.limits.lifecycle_retention
    events = store.stream.prune(floor.acknowledged, retention, limit) if floor.acknowledged else 0
    letters = store.consumers.prune_letters(retention, limit - events) if events < limit else 0
    if events or letters:
        _log.info("tenant %s: %d events and %d dead letters pruned", store.tenant_id, events, letters)
    return Pruned(events, letters)
