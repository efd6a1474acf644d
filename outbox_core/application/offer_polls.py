"""The consumers' tick, and what wakes a consumer before it: offer polls to those that have something to observe."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from outbox_core.domain.limits import TICK_SHARE

if TYPE_CHECKING:
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import Store, TenantStore

_MOST = 1_000


def offer_polls(store: Store, runtime: Runtime) -> int:
    """Offer a poll to each consumer that this process has an observer for and that is due; return how many.

    One that is idle is put off and costs no message (L15). Workers that know other observers have ticks of their own.
    """
    limits, ids = runtime.limits, sorted(runtime.observers.ids())
    if not ids:
        return 0
    known = hashlib.sha256("|".join(ids).encode()).hexdigest()[:16]
    if not store.maintenance.tick_due(f"consumers.{known}", limits.consumer_poll * TICK_SHARE):
        return 0
    due = store.maintenance.due_consumers(ids, limits.slot_hold, _MOST)
    return sum(runtime.hints.poll(tenant_id, consumer_id) for tenant_id, consumer_id in due)


def wake_consumers(store: TenantStore, runtime: Runtime) -> int:
    """Offer a poll to each consumer of a tenant that waits in idleness and has something to observe (L17)."""
    ids = sorted(runtime.observers.ids())
    woken = store.consumers.wake(ids) if ids else ()
    return sum(runtime.hints.poll(store.tenant_id, consumer_id) for consumer_id in woken)
