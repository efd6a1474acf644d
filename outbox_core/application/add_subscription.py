"""Create a rule that matches what comes from now on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from outbox_core.domain.errors import InvalidInputError, TransientError
from outbox_core.domain.subscription import differences

if TYPE_CHECKING:
    from outbox_core.domain.subscription import Subscription
    from outbox_core.ports.store import TenantStore


@dataclass(frozen=True, slots=True)
class Added:
    """The rule as it is stored, and whether it is new."""

    rule: Subscription
    fresh: bool


def add_subscription(store: TenantStore, rule: Subscription) -> Added:
    """Store a rule; return it with its horizon (E07).

    History does not fire: what the log holds at this moment is behind the horizon, a number that is still missing is
    not. A read error creates nothing. A repeat returns the rule that is there, with its own horizon, its switch and
    its origin as they are. Raises InvalidInputError where the id is another rule's, which is left as it is.
    """
    cursor = store.progress.load()
    born = replace(rule, horizon=store.log.horizon(cursor.seq), created_at=cursor.now)
    if store.subscriptions.add(born):
        return Added(born, fresh=True)
    named = f"tenant {store.tenant_id} has a subscription {rule.sub_id!r} already"
    known = store.subscriptions.get([rule.sub_id]).get(rule.sub_id)
    if known is None:
        raise TransientError(f"{named}, which comes or goes just now; try again")
    if isinstance(known, str):
        raise InvalidInputError(f"{named}, which cannot be read ({known}); remove it first")
    if differ := differences(known, rule):
        raise InvalidInputError(f"{named}, with other content: {'; '.join(differ)}; remove it first")
    return Added(known, fresh=False)
