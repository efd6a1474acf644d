"""Remove what every consumer has acknowledged and is older than the retention, in bounded batches."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_core.domain.errors import OutboxError, TransientError
from outbox_core.domain.limits import TICK_SHARE
from outbox_core.domain.retention import floor_of

if TYPE_CHECKING:
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import Store, TenantStore

_PAGE = 1_000

_ENOUGH = 3
"""How many tenants in a row a store may leave without an answer before the others are not asked for."""

_log = logging.getLogger("outbox.lifecycle")


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many events and dead letters were removed."""

    events: int
    letters: int


def prune_lifecycle(store: Store, runtime: Runtime) -> Pruned | None:
    """Prune each tenant's stream, PRUNE_BATCH removals in all; None where another beat's tick has just done so (L13).

    A tenant that fails is left for the next time, and stops no other. A registration that races this one finds the rows
    gone that it wanted, and reconciles (L12). Raises TransientError where the store answers nobody.
    """
    limits = runtime.limits
    if not store.maintenance.tick_due("prune", limits.prune_tick * TICK_SHARE):
        return None
    events, letters, failed, after = 0, 0, 0, ""
    while page := store.maintenance.lifecycle_tenants(after, _PAGE):
        for tenant_id in page:
            left = limits.prune_batch - events - letters
            if left <= 0:
                return Pruned(events, letters)
            try:
                pruned = _prune(store.tenant(tenant_id), runtime, left)
            except TransientError as error:
                _log.warning("tenant %s could not be pruned: %s", tenant_id, error)
                failed += 1
                if failed >= _ENOUGH:
                    raise
            except OutboxError:
                # What is damaged is one tenant's, and so is what it stops.
                _log.exception("tenant %s cannot be pruned", tenant_id)
            else:
                failed = 0
                events, letters = events + pruned.events, letters + pruned.letters
        after = page[-1]
    return Pruned(events, letters)


def _prune(store: TenantStore, runtime: Runtime, limit: int) -> Pruned:
    # The rows first: a cursor that has moved since then would lie above the head, and keep everything.
    rows = store.consumers.all()
    floor = floor_of(rows, store.stream.head())
    retention = runtime.limits.lifecycle_retention
    events = store.stream.prune(floor.acknowledged, retention, limit) if floor.acknowledged else 0
    letters = store.consumers.prune_letters(retention, limit - events) if events < limit else 0
    if events or letters:
        _log.info("tenant %s: %d events and %d dead letters pruned", store.tenant_id, events, letters)
    return Pruned(events, letters)
