"""The slow tick: find tenants whose undrained flag is wrong."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from outbox_core.domain.limits import TICK_SHARE

if TYPE_CHECKING:
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import Store

_log = logging.getLogger("outbox.repair")

_PAGE = 1_000


def repair_undrained(store: Store, runtime: Runtime) -> int:
    """Set the flag of each tenant whose counter is ahead of its cursor; return how many were wrong (E16).

    The flag is a shortcut that every append sets; this looks without it, so a lost flag delays and never loses.
    """
    if not store.maintenance.tick_due("repair", runtime.limits.repair_tick * TICK_SHARE):
        return 0
    repaired, after, more = 0, "", True
    while more:
        lagging, after = store.maintenance.lagging_tenants(after, _PAGE)
        more = bool(after)
        for tenant_id in lagging:
            if store.tenant(tenant_id).log.flag_undrained():
                repaired += 1
                _log.warning("tenant %s had something to drain and no flag that said so", tenant_id)
    return repaired
