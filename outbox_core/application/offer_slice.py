"""Offer one slice of one tenant to whoever is free."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from outbox_core.application.leave_slot import leave_slot
from outbox_core.domain.errors import TransientError
from outbox_core.ports.slots import Lane

if TYPE_CHECKING:
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore

_log = logging.getLogger("outbox.slots")


def offer_slice(store: TenantStore, runtime: Runtime) -> bool:
    """Take a free slot and hint a slice with it; say whether one was offered. Never raises: a sweep covers it.

    Where all slots are taken the tenant's slices are on their way. The message carries the slot, so offers can never
    outnumber the slots; a hint that is lost costs its slot for SLOT_HOLD.
    """
    try:
        token = store.slots.take(Lane.SLICE, runtime.limits.slot_hold)
    except TransientError as error:
        # Whoever offers has rows in hand, or has just made some: neither may suffer from this.
        _log.info("tenant %s: no slice is offered, a sweep will find it: %s", store.tenant_id, error)
        return False
    if token is None:
        return False
    if runtime.hints.slice(store.tenant_id, token):
        return True
    leave_slot(store, Lane.SLICE, token)
    return False
