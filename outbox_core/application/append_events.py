"""Append events to a tenant's log, once each, whatever the answers were."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_core.application.patience import patiently
from outbox_core.domain.errors import EventConflictError, InvalidInputError, OutboxError, TransientError
from outbox_core.domain.event import Event, NewEvent
from outbox_core.domain.limits import MAX_RULE_ATTRIBUTES_BYTES
from outbox_core.domain.payload import require_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outbox_core.domain.limits import Limits
    from outbox_core.ports.event_log import Allocation
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore

_log = logging.getLogger("outbox.append")


@dataclass(frozen=True, slots=True)
class Appended:
    """An event as the log has it; `duplicate` says that it was there before."""

    event_id: str
    seq: int
    duplicate: bool = False


def append_events(store: TenantStore, runtime: Runtime, events: Sequence[NewEvent]) -> Sequence[Appended]:
    """Append events outside a transaction, in their order under one block of numbers.

    Returns one `Appended` for each, durable on a majority. An event id that the log has, or that stands twice in
    `events`, gives the number it has (E46). Raises InvalidInputError before anything is written (E09), and
    TransientError where the store did not answer clearly for GAP_GRACE: appending the same event ids again is then
    safe, and says what became of them.
    """
    for event in events:
        check_event(event, runtime.limits)
    wanted = {event.event_id: event for event in events}
    settled: dict[str, Appended] = {}
    owed = False
    give_up = runtime.clock.monotonic() + runtime.limits.gap_grace.total_seconds()
    while missing := [event for event_id, event in wanted.items() if event_id not in settled]:
        allocation = patiently(runtime.clock, give_up, lambda: store.log.allocate(len(missing)))
        owed = owed or not allocation.was_undrained
        settled |= _insert(store, runtime, number_events(store.tenant_id, missing, allocation), give_up)
    if owed:
        # Only where this append turned the tenant from drained to undrained: else a drain is owed already.
        runtime.hints.turn(store.tenant_id)
    return [settled[event.event_id] for event in events]


def check_event(event: NewEvent, limits: Limits) -> None:
    """Raise InvalidInputError where an event could not be stored, or is over a limit."""
    what = f"event {event.event_id}"
    event.attributes.require_storable(f"{what}: the attributes that rules match")
    if event.trace:
        require_json(dict(event.trace), f"{what}: trace", MAX_RULE_ATTRIBUTES_BYTES)
    if event.data:
        require_json(dict(event.data), f"{what}: data", limits.max_event_bytes)
    if not all(isinstance(value, str) for value in event.trace.values()):
        raise InvalidInputError(f"{what}: trace holds something that is not text")


def number_events(tenant_id: str, events: Iterable[NewEvent], allocation: Allocation) -> list[Event]:
    """Give each event its number and the server's time."""
    return [
        Event(
            tenant_id=tenant_id,
            seq=seq,
            event_id=event.event_id,
            attributes=event.attributes,
            data=event.data,
            trace=event.trace,
            occurred_at=event.occurred_at,
            recorded_at=allocation.now,
        )
        for seq, event in zip(allocation.seqs, events, strict=True)
    ]


def fill_own_numbers(store: TenantStore, seqs: Sequence[int]) -> None:
    """Fill numbers that will hold no event, so that no drain waits for them; failing that, the grace heals it."""
    if not seqs:
        return
    try:
        store.log.fill(seqs)
    except OutboxError as error:
        _log.info("tenant %s: %d unused numbers stay for the grace: %s", store.tenant_id, len(seqs), error)


def _insert(store: TenantStore, runtime: Runtime, events: list[Event], give_up: float) -> dict[str, Appended]:
    """Insert numbered events; return those that the log now has. What is missing needs fresh numbers."""
    mine = {event.event_id: event.seq for event in events}
    try:
        # After an unclear answer the same documents go again, same numbers, same ids: never a second event.
        patiently(runtime.clock, give_up, lambda: store.log.insert(events))
    except EventConflictError as conflict:
        # An id that exists may be our own, from a try whose answer was lost; its number tells.
        existing = conflict.duplicates
        present = patiently(runtime.clock, give_up, lambda: _find_all(store, mine, existing))
        fill_own_numbers(store, [seq for event_id, seq in mine.items() if present.get(event_id, seq) != seq])
        return {event_id: Appended(event_id, seq, duplicate=seq != mine[event_id]) for event_id, seq in present.items()}
    return {event_id: Appended(event_id, seq) for event_id, seq in mine.items()}


def _find_all(store: TenantStore, event_ids: Iterable[str], existing: frozenset[str]) -> Mapping[str, int]:
    """Return the numbers of the ids that the log has; those that it said exist must be among them."""
    present = store.log.find(event_ids)
    if hidden := existing - present.keys():
        # A fresh number would meet the same answer, for ever: its document stands under another event id.
        raise TransientError(f"the log of {store.tenant_id} has event {min(hidden)!r}, and cannot find it")
    return present
