"""Append events in a transaction that the caller opened, and that the caller commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.application.append_events import Appended, check_event, fill_own_numbers, number_events
from outbox_core.domain.errors import OutboxError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox_core.domain.event import NewEvent
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


def append_in_session(
    store: TenantStore, runtime: Runtime, events: Sequence[NewEvent], session: object
) -> Sequence[Appended]:
    """Append events in the open transaction of the caller's own session; they are visible exactly if it commits (E02).

    Returns one `Appended` for each; an event id that the transaction sees gives the number it has (E46). Numbers are
    taken here, so append last: until the transaction ends the tenant's drain waits before them, and one that is
    aborted leaves them missing for a grace. No hint is sent, since nobody tells of the commit. Raises InvalidInputError
    for an event or a session that will not do, ContentionError where the transaction is undone and must run again (an
    event id that raced, another writer), and TransientError; numbers that were taken are then filled at once.
    """
    for event in events:
        check_event(event, runtime.limits)
    wanted = {event.event_id: event for event in events}
    with store.transactions.adopt(session) as transaction:
        # The first read pins the transaction's snapshot. A number taken before that could be lower than the number of
        # a transaction whose writes this one goes on to see.
        present = store.log.find(wanted, transaction)
        appended = {event_id: Appended(event_id, seq, duplicate=True) for event_id, seq in present.items()}
        fresh = [event for event_id, event in wanted.items() if event_id not in present]
        if fresh:
            numbered = number_events(store.tenant_id, fresh, store.log.allocate(len(fresh)))
            try:
                store.log.insert(numbered, transaction)
            except OutboxError:
                # Where an event may be in the transaction after all, the tombstone waits, and is refused.
                fill_own_numbers(store, [event.seq for event in numbered])
                raise
            appended |= {event.event_id: Appended(event.event_id, event.seq) for event in numbered}
    return [appended[event.event_id] for event in events]
