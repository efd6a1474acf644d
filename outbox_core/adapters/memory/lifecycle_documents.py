"""Stored documents of lifecycle observation on the twin, with the names that MongoDB's documents have."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from outbox_core.adapters.memory.documents import Fields, storable_document
from outbox_core.domain.consumer import Consumer, DeadLetter, Failing, LetterState, Start
from outbox_core.domain.lifecycle_event import (
    EVENT_TYPES,
    PAYLOAD_VERSION,
    LifecycleEvent,
    Standing,
    StreamEntry,
    UnreadableEvent,
)

if TYPE_CHECKING:
    from outbox_core.adapters.memory.database import Document

INVALID_CURSOR = -1
_NEVER = datetime.min.replace(tzinfo=UTC)


def event_document(event: LifecycleEvent) -> Document:
    """Return the stored form of an event, without its key."""
    return storable_document({**asdict(event), "event_id": event.event_id, "prior_status": event.prior_status.value})


def entry_of(document: Document) -> StreamEntry:
    """Return an event as the domain has it, or why it cannot be given to an observer."""
    kind = document.get("event_type")
    if isinstance(kind, str) and kind not in EVENT_TYPES:
        return _unreadable(document, f"a newer version wrote the event type {kind!r}", unknown=True)
    version = document.get("payload_version")
    if isinstance(version, int) and version > PAYLOAD_VERSION:
        return _unreadable(document, f"a newer version wrote the payload version {version}", unknown=True)
    try:
        return event_of(document)
    except ValueError as error:
        return _unreadable(document, f"the stored event is malformed: {error}", unknown=False)


def event_of(document: object) -> LifecycleEvent:
    """Return an event; raise ValueError where it does not decode."""
    fields = Fields(document)
    event = LifecycleEvent(
        tenant_id=fields.text("tenant_id", None),
        sequence=fields.number("sequence"),
        event_type=fields.text("event_type", None),
        task_id=fields.text("task_id", None),
        deleted_at=fields.instant("deleted_at"),
        prior_column=fields.text("prior_column"),
        prior_status=Standing(fields.text("prior_status", None)),
        writer_process_id=fields.text("writer_process_id", None),
        occurred_at=fields.instant("occurred_at"),
        payload_version=fields.number("payload_version"),
    )
    if event.event_id != fields.text("event_id", None):
        raise ValueError("event_id: not that of its own fields")
    return event


def _unreadable(document: Document, why: str, *, unknown: bool) -> UnreadableEvent:
    event_id = document.get("event_id")
    return UnreadableEvent(
        sequence=document["sequence"],
        event_id=event_id if isinstance(event_id, str) else f"#sequence.{document['sequence']}",
        why=why,
        unknown=unknown,
    )


def consumer_of(document: Document) -> Consumer:
    """Return a registration; one that does not decode has a cursor that cannot be, and says why it waits."""
    try:
        return _consumer(document)
    except ValueError as error:
        registered_at = document.get("registered_at")
        return Consumer(
            tenant_id=document["tenant_id"],
            consumer_id=str(document.get("consumer_id")),
            start=Start.LATEST,
            cursor=INVALID_CURSOR,
            registered_at=registered_at if isinstance(registered_at, datetime) else _NEVER,
            # Retired by an operator it is over, whatever else is in it.
            retired_at=_NEVER if isinstance(document.get("retired_at"), datetime) else None,
            stopped_for=f"its row does not decode: {error}",
            damaged=True,
        )


def _consumer(document: Document) -> Consumer:
    fields = Fields(document)
    return Consumer(
        tenant_id=fields.text("tenant_id", None),
        consumer_id=fields.text("consumer_id", None),
        start=Start(fields.text("start", None)),
        cursor=cursor_of(document.get("last_acked_sequence")),
        registered_at=fields.instant("registered_at"),
        must_reconcile=fields.flag("must_reconcile", default=False),
        retired_at=fields.instant_or_none("retired_at"),
        paused_at=fields.instant_or_none("paused_at"),
        stopped_for=fields.text("stopped_for"),
        lease_owner=fields.text("lease_owner"),
        lease_until=fields.instant_or_none("lease_until"),
        heartbeat_at=fields.instant_or_none("heartbeat_at"),
        fence=fields.count("fence"),
        failing=_failing(fields) if document.get("failing") is not None else None,
        idle_polls=fields.count("idle_polls"),
        next_poll_at=fields.instant_or_none("next_poll_at"),
    )


def _failing(fields: Fields) -> Failing:
    failing = fields.nested("failing")
    return Failing(
        event_id=failing.text("event_id", None),
        attempts=failing.count("attempts"),
        next_attempt_at=failing.instant("next_attempt_at"),
        failure_class=failing.text("failure_class"),
    )


def cursor_of(stored: Any) -> int | None:  # noqa: ANN401 - a stored value
    """Return a stored cursor: -1 where it is no number from 0 on."""
    if stored is None:
        return None
    if isinstance(stored, bool) or not isinstance(stored, int) or stored < 0:
        return INVALID_CURSOR
    return stored


def letter_of(document: Document) -> DeadLetter:
    """Return a dead letter; its event is None where that does not decode."""
    fields = Fields(document)
    try:
        event = event_of(document.get("event"))
    except ValueError:
        event = None
    return DeadLetter(
        tenant_id=fields.text("tenant_id", None),
        consumer_id=fields.text("consumer_id", None),
        event_id=fields.text("event_id", None),
        sequence=fields.number("sequence"),
        event=event,
        attempts=fields.count("attempts"),
        failure_class=fields.text("failure_class"),
        parked_at=fields.instant("parked_at"),
        state=LetterState(fields.text("state", None)),
        replays=fields.count("replays"),
        settled_at=fields.instant_or_none("settled_at"),
        settled_by=fields.text("settled_by"),
        settled_why=fields.text("settled_why"),
    )
