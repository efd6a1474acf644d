"""The drain tick: offer a drain to every tenant that has something to drain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.application.enough_waits import enough_waits
from outbox_core.application.leave_slot import leave_slot
from outbox_core.domain.limits import TICK_SHARE
from outbox_core.ports.slots import Lane

if TYPE_CHECKING:
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import Store

_PAGE = 1_000


def offer_drains(store: Store, runtime: Runtime) -> int:
    """Offer one drain to each undrained tenant, subscriptions or not (E16); return how many were offered.

    A tenant that is being drained is left alone, and all are while enough waits for workers (C06). A tick that
    another beat's has just done costs one read.
    """
    limits = runtime.limits
    if not store.maintenance.tick_due("drain", limits.drain_tick * TICK_SHARE):
        return 0
    offered, after = 0, ""
    while page := store.maintenance.undrained_tenants(after, _PAGE):
        if not after and enough_waits(runtime, Lane.DRAIN, len(page)):
            return 0
        hold = limits.queue_hold(len(page) - 1)
        for tenant_id, token in store.maintenance.take_slots(Lane.DRAIN, page, hold).items():
            if runtime.hints.drain(tenant_id, token):
                offered += 1
            else:
                leave_slot(store.tenant(tenant_id), Lane.DRAIN, token)
        after = page[-1]
    return offered
