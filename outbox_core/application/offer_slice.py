"""Offer one slice of one tenant to whoever is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.application.leave_slot import leave_slot
from outbox_core.ports.slots import Lane

if TYPE_CHECKING:
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


def offer_slice(store: TenantStore, runtime: Runtime) -> bool:
    """Take a free slot and hint a slice with it; say whether one was offered.

    Where all slots are taken the tenant's slices are on their way. The message carries the slot, so offers can never
    outnumber the slots; a hint that is lost costs its slot for SLOT_HOLD.
    """
    token = store.slots.take(Lane.SLICE, runtime.limits.slot_hold)
    if token is None:
        return False
    if runtime.hints.slice(store.tenant_id, token):
        return True
    leave_slot(store, Lane.SLICE, token)
    return False
