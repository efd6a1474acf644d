"""Give a slot back; where the store does not answer it ends by itself."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from outbox_core.domain.errors import TransientError

if TYPE_CHECKING:
    from outbox_core.ports.slots import Lane
    from outbox_core.ports.store import TenantStore

_log = logging.getLogger("outbox.slots")


def leave_slot(store: TenantStore, lane: Lane, token: str) -> bool:
    """Give `token` back; return whether all slots were taken until now. One that is not held changes nothing."""
    try:
        return store.slots.give_back(lane, token)
    except TransientError as error:
        _log.info("tenant %s: a %s slot ends by itself: %s", store.tenant_id, lane, error)
        return False
