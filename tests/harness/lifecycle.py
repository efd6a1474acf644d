"""Example lifecycle events and consumers, with as little said as a test needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from outbox_core.domain.consumer import Start
from outbox_core.domain.errors import ContentionError
from outbox_core.domain.lifecycle_event import CARD_DELETED, LifecycleChange, LifecycleEvent, Standing

if TYPE_CHECKING:
    from outbox_core.domain.consumer import Consumer, Lease
    from outbox_core.ports.store import TenantStore

FIRST_DELETION = datetime(2026, 11, 30, 15, 0, tzinfo=UTC)
LEASE = timedelta(seconds=15)
CURSORS, LETTERS, AUDIT = "lifecycle_consumer_cursors", "lifecycle_dead_letters", "run_audit"


def deletion(number: int = 1, **more: Any) -> LifecycleChange:  # noqa: ANN401 - fields by name
    """Return the deletion of the card `c<number>`, each a millisecond after the one before."""
    fields = {
        "event_type": CARD_DELETED,
        "task_id": f"c{number}",
        "deleted_at": FIRST_DELETION + timedelta(milliseconds=number),
        "prior_column": "todo",
        "prior_status": Standing.ACTIVE,
        "writer_process_id": "writer-1",
        **more,
    }
    return LifecycleChange(**fields)


def tell(store: TenantStore, *changes: LifecycleChange) -> list[LifecycleEvent]:
    """Append each in a transaction of its own, as often as it takes."""
    told = []
    for change in changes:
        while True:
            try:
                with store.transactions.begin() as transaction:
                    event = store.stream.append(change, transaction)
                    transaction.commit()
            except ContentionError:
                continue
            told.append(event)
            break
    return told


def tell_many(store: TenantStore, count: int, first: int = 1) -> list[LifecycleEvent]:
    return tell(store, *(deletion(number) for number in range(first, first + count)))


def register(store: TenantStore, consumer_id: str = "cache", start: Start = Start.BEGINNING) -> Consumer:
    return store.consumers.register(consumer_id, start, "ann")


def lease(store: TenantStore, consumer_id: str = "cache", owner: str = "worker-1") -> Lease:
    """Take a lease that must be free."""
    taken = store.consumers.lease(consumer_id, owner, LEASE)
    assert taken is not None
    return taken


def begun(store: TenantStore, consumer_id: str = "cache", owner: str = "worker-1") -> Lease:
    """Register a consumer, lease it, and let it begin before the first event."""
    register(store, consumer_id)
    taken = lease(store, consumer_id, owner)
    assert store.consumers.begin(taken)
    return taken


def row(store: TenantStore, consumer_id: str = "cache") -> Consumer:
    """Return the stored row of a consumer."""
    found = store.consumers.look(consumer_id).consumer
    assert found is not None
    return found


def codes(store: TenantStore) -> list[str]:
    """Return what was audited, the oldest first, without the prefix that all of it has."""
    return [one.code.rpartition(":")[2] for one in reversed(store.audit.rows())]
