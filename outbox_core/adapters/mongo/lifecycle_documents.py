"""The stored forms of lifecycle observation: events, consumers and dead letters, each read on its own."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bson.datetime_ms import DatetimeMS
from pydantic import Field

from outbox_core.adapters.mongo.documents import (
    StoredDocument,
    Text,
    Whole,
    decode,
    decode_leniently,
    why_invalid,
)
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
    from collections.abc import Mapping

    from bson.raw_bson import RawBSONDocument

INVALID_CURSOR = -1
"""How a cursor is read that is no whole number from 0 on."""

_NEVER = datetime(1, 1, 1, tzinfo=UTC)


class LifecycleEventDocument(StoredDocument):
    """An event in lifecycle_outbox, and in a dead letter's own copy."""

    tenant_id: str
    sequence: Whole
    event_type: str
    event_id: str
    task_id: str
    deleted_at: datetime
    prior_column: Text = ""
    prior_status: str
    writer_process_id: str
    occurred_at: datetime
    payload_version: Whole = PAYLOAD_VERSION


class FailingDocument(StoredDocument):
    """`failing` of a consumer."""

    event_id: str
    attempts: Whole = Field(ge=0)
    next_attempt_at: datetime
    failure_class: Text = ""


class ConsumerDocument(StoredDocument):
    """A registration in lifecycle_consumer_cursors; `last_acked_sequence` is read by `cursor_of`."""

    tenant_id: str
    consumer_id: str
    start: str
    registered_at: datetime
    must_reconcile: bool = False
    retired_at: datetime | None = None
    paused_at: datetime | None = None
    stopped_for: Text = ""
    lease_owner: Text = ""
    lease_until: datetime | None = None
    heartbeat_at: datetime | None = None
    fence: Whole = Field(default=0, ge=0)
    failing: FailingDocument | None = None
    idle_polls: Whole = Field(default=0, ge=0)
    next_poll_at: datetime | None = None


class LetterDocument(StoredDocument):
    """A delivery that was given up, in lifecycle_dead_letters."""

    tenant_id: str
    consumer_id: str
    event_id: str
    sequence: Whole
    event: dict[str, Any] | None = None
    attempts: Whole = 0
    failure_class: Text = ""
    parked_at: datetime
    state: str
    replays: Whole = 0
    settled_at: datetime | None = None
    settled_by: Text = ""
    settled_why: Text = ""


def event_document(event: LifecycleEvent) -> dict[str, Any]:
    """Return the stored form of an event, without its key."""
    return {**asdict(event), "event_id": event.event_id, "prior_status": event.prior_status.value}


def entry_of(document: RawBSONDocument, sequence: int) -> StreamEntry:
    """Return an event as the domain has it, or why it cannot be given to an observer."""
    lenient = decode_leniently(document)
    why = newer = _newer(lenient)
    if not newer:
        try:
            return _event_of(decode(document))
        except ValueError as error:
            why = f"the stored event is malformed: {why_invalid(error)}"
    event_id = lenient.get("event_id")
    return UnreadableEvent(
        sequence=sequence,
        event_id=event_id if isinstance(event_id, str) and event_id else f"#sequence.{sequence}",
        why=why,
        unknown=bool(newer),
    )


def _newer(document: Mapping[str, Any]) -> str:
    """Return what of a document only a newer version knows, "" where this one knows it all."""
    kind, version = document.get("event_type"), document.get("payload_version")
    if isinstance(kind, str) and kind not in EVENT_TYPES:
        return f"a newer version wrote the event type {kind[:80]!r}"
    if isinstance(version, int) and version > PAYLOAD_VERSION:
        return f"a newer version wrote the payload version {version}"
    return ""


def _event_of(document: Mapping[str, Any]) -> LifecycleEvent:
    stored = LifecycleEventDocument.model_validate(document)
    values = stored.model_dump()
    event_id = values.pop("event_id")
    event = LifecycleEvent(**{**values, "prior_status": Standing(stored.prior_status)})
    if stored.event_type not in EVENT_TYPES or event.event_id != event_id:
        # An observer deduplicates by it, so one that was forged, or written for another event, must not pass.
        raise ValueError("event_id: not that of its own fields")
    return event


def consumer_of(document: RawBSONDocument) -> Consumer:
    """Return a registration. One that does not decode waits for an operator, and keeps the stream from being pruned."""
    lenient = decode_leniently(document)
    try:
        stored = ConsumerDocument.model_validate(decode(document))
        values = {**stored.model_dump(), "start": Start(stored.start), "failing": _failing(stored.failing)}
    except ValueError as error:
        identity = str(lenient.get("_id", ""))
        return Consumer(
            tenant_id=str(lenient.get("tenant_id", "")),
            consumer_id=str(lenient.get("consumer_id") or identity.partition("|")[2]),
            start=Start.LATEST,
            cursor=INVALID_CURSOR,
            registered_at=_NEVER,
            # Retired by an operator it is over, whatever else is in it.
            retired_at=_NEVER if isinstance(lenient.get("retired_at"), DatetimeMS) else None,
            stopped_for=f"its row does not decode: {why_invalid(error)}",
            damaged=True,
        )
    return Consumer(**values, cursor=cursor_of(lenient.get("last_acked_sequence")))


def _failing(stored: FailingDocument | None) -> Failing | None:
    return None if stored is None else Failing(**stored.model_dump())


def cursor_of(stored: object) -> int | None:
    """Return a stored cursor: None where there is none, INVALID_CURSOR where it is no whole number from 0 on."""
    if stored is None:
        return None
    if isinstance(stored, bool) or not isinstance(stored, int | float) or stored < 0:
        return INVALID_CURSOR
    return int(stored) if isinstance(stored, int) or stored.is_integer() else INVALID_CURSOR


def letter_of(document: Mapping[str, Any]) -> DeadLetter:
    """Return a dead letter, its event None where that does not decode; raise ValueError where it is none."""
    stored = LetterDocument.model_validate(document)
    values = {**stored.model_dump(), "state": LetterState(stored.state), "event": _copied(stored.event)}
    return DeadLetter(**values)


def _copied(event: Mapping[str, Any] | None) -> LifecycleEvent | None:
    try:
        return None if event is None else _event_of(event)
    except ValueError:
        return None
