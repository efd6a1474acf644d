"""Enable a rule again, for what comes from now on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.domain.errors import SubscriptionNotFoundError

if TYPE_CHECKING:
    from outbox_core.ports.store import TenantStore


def enable_subscription(store: TenantStore, sub_id: str) -> bool:
    """Enable a rule with a fresh horizon (E07); say whether it was disabled. SubscriptionNotFoundError."""
    if sub_id not in store.subscriptions.get([sub_id]):
        raise SubscriptionNotFoundError(f"tenant {store.tenant_id} has no subscription {sub_id!r}")
    horizon = store.log.horizon(store.progress.load().seq)
    return store.subscriptions.set_enabled(sub_id, enabled=True, horizon=horizon)
