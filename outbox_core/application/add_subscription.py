"""Create a rule that matches what comes from now on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.domain.errors import InvalidInputError

if TYPE_CHECKING:
    from outbox_core.domain.subscription import Subscription
    from outbox_core.ports.store import TenantStore


def add_subscription(store: TenantStore, rule: Subscription) -> Subscription:
    """Store a rule; return it with its horizon (E07).

    History does not fire: what the log holds at this moment is behind the horizon, a number that is still missing is
    not. A read error creates nothing. Raises InvalidInputError where the id exists; the other rule is left as it is.
    """
    cursor = store.progress.load()
    born = replace(rule, horizon=store.log.horizon(cursor.seq), created_at=cursor.now)
    if not store.subscriptions.add(born):
        raise InvalidInputError(f"tenant {store.tenant_id} has a subscription {rule.sub_id!r} already; remove it first")
    return born
