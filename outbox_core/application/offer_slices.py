"""The sweep tick: offer a slice to every tenant that has due rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.application.enough_waits import enough_waits
from outbox_core.application.leave_slot import leave_slot
from outbox_core.domain.limits import TICK_SHARE
from outbox_core.ports.slots import Lane

if TYPE_CHECKING:
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import Store


def offer_slices(store: Store, runtime: Runtime) -> int:
    """Offer one slice to each tenant with due rows, subscriptions or not (E16); return how many were offered.

    A tenant whose slots are all taken is left alone, and all are while enough waits for workers (C06). A tick that
    another beat's has just done costs one read.
    """
    limits = runtime.limits
    if not store.maintenance.tick_due("sweep", limits.sweep_tick * TICK_SHARE):
        return 0
    due = store.maintenance.due_tenants()
    if due and enough_waits(runtime, Lane.SLICE, len(due) * limits.tenant_slots):
        return 0
    hold = limits.queue_hold((len(due) - 1) * limits.tenant_slots)
    taken = store.maintenance.take_slots(Lane.SLICE, due, hold)
    offered = 0
    for tenant_id, token in taken.items():
        if runtime.hints.slice(tenant_id, token):
            offered += 1
        else:
            leave_slot(store.tenant(tenant_id), Lane.SLICE, token)
    return offered
