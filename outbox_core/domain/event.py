"""An event: an immutable fact in a tenant's log, and what a rule may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.identity import require_id
from outbox_core.domain.limits import MAX_RULE_ATTRIBUTES_BYTES
from outbox_core.domain.payload import require_json

BOARD = "board"
FORGE = "forge"
APP = "app"
CLOUDEVENTS = "cloudevents"

WATCHDOG, STATE_RENAME, STATE_DELETE = "watchdog", "state_rename", "state_delete"
MACHINE_REASONS = frozenset({WATCHDOG, STATE_RENAME, STATE_DELETE, "field_rename"})
"""Reasons that say a machine's hand caused the change; such an event launches nothing (E18)."""

DELETION_ACTIONS = frozenset({"deleted", "transferred"})
"""Actions of a board event that tell of the card's own end; they outlive the card (E11)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The attributes that rules match, as they were when the event happened (E17), and the board of its card."""

    state: str = ""
    from_state: str = ""
    labels: tuple[str, ...] = ()
    repo: str = ""
    author: str = ""
    board: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """All that a rule may ask of an event; an effect row carries a copy for the check at execution."""

    source: str
    type: str
    action: str = ""
    subject: str = ""
    snapshot: Snapshot = field(default_factory=Snapshot)
    reason: str = ""
    run_id: str = ""

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON; written out, since a general copy of a row's attributes costs ten times as much."""
        seen = self.snapshot
        return {
            "source": self.source,
            "type": self.type,
            "action": self.action,
            "subject": self.subject,
            "snapshot": {
                "state": seen.state,
                "from_state": seen.from_state,
                "labels": list(seen.labels),
                "repo": seen.repo,
                "author": seen.author,
                "board": seen.board,
            },
            "reason": self.reason,
            "run_id": self.run_id,
        }

    def require_storable(self, what: str) -> None:
        """Raise InvalidInputError where it is not valid Unicode, EventTooLargeError where it is over its bound as JSON.

        Only what may be over is measured: a character takes six bytes at most, a quoted text three more, the names 200.
        """
        seen = self.snapshot
        texts = (self.source, self.type, self.action, self.subject, self.reason, self.run_id)
        more = (seen.state, seen.from_state, seen.repo, seen.author, seen.board, *seen.labels)
        text = "\0".join((*texts, *more))
        if 6 * len(text) + 3 * len(seen.labels) + 233 > MAX_RULE_ATTRIBUTES_BYTES or not _is_unicode(text):
            require_json(self.document(), what, MAX_RULE_ATTRIBUTES_BYTES)

    @property
    def observational(self) -> bool:
        """The event reports on a launched run: it launches nothing (E19)."""
        return bool(self.run_id)

    @property
    def machine_caused(self) -> bool:
        """A machine's hand caused the change: it launches nothing (E18)."""
        return self.reason in MACHINE_REASONS

    @property
    def concerns_card(self) -> bool:
        """The subject is a card of the tenant's board; elsewhere it is free text."""
        return self.source == BOARD and bool(self.subject)

    @property
    def tells_of_move(self) -> bool:
        """The event's card went from one state to another: a bound board is owed its projection, whoever moved it."""
        return self.concerns_card and bool(self.snapshot.board) and bool(self.snapshot.from_state)

    @property
    def tells_of_deletion(self) -> bool:
        """The event reports the end of its own card, which is therefore gone when it is read."""
        return self.source == BOARD and self.action in DELETION_ACTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event on its way into a log; `event_id` is minted once, before the first try to store it (E46).

    `data` is a JSON object for the bot, `trace` a carrier of trace context, `occurred_at` aware UTC or None.
    """

    event_id: str
    attributes: Attributes
    data: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, str] = field(default_factory=dict)
    occurred_at: datetime | None = None

    def __post_init__(self) -> None:
        require_id(self.event_id, "event id")
        _require_types(self)
        if not self.attributes.source or not self.attributes.type:
            msg = "an event needs a source and a type"
            raise InvalidInputError(msg)
        if self.occurred_at is not None and self.occurred_at.tzinfo is None:
            msg = "occurred_at must carry a time zone"
            raise InvalidInputError(msg)


def _require_types(event: NewEvent) -> None:
    """A type that is only noticed in the store would make a document that no drain can read."""
    attributes, snapshot = event.attributes, event.attributes.snapshot
    if _is_well_typed(event):
        return
    texts = {
        **{name: getattr(attributes, name) for name in ("source", "type", "action", "subject", "reason", "run_id")},
        **{name: getattr(snapshot, name) for name in ("state", "from_state", "repo", "author")},
        **{f"labels[{index}]": label for index, label in enumerate(snapshot.labels)},
    }
    forms: list[tuple[str, object, type, str]] = [
        *((name, value, str, "text") for name, value in texts.items()),
        ("data", event.data, Mapping, "a mapping"),
        ("trace", event.trace, Mapping, "a mapping"),
    ]
    if event.occurred_at is not None:
        forms.append(("occurred_at", event.occurred_at, datetime, "a datetime"))
    for name, value, form, said in forms:
        if not isinstance(value, form):
            raise InvalidInputError(f"{name} must be {said}, not a {type(value).__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event as its log holds it; `recorded_at` is the server's time at its numbering."""

    tenant_id: str
    seq: int
    event_id: str
    attributes: Attributes
    data: Mapping[str, Any]
    trace: Mapping[str, str]
    occurred_at: datetime | None
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A number that will never hold an event: it was filled after the grace, or by an abort."""

    seq: int


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A stored document under a number that cannot be read as an event (E08)."""

    seq: int
    document_id: str
    error: str


LogEntry = Event | Tombstone | Undecodable


def tombstone_id(seq: int) -> str:
    """Return the event id of a tombstone: one of its own, so that two never collide."""
    return f"#void.{seq}"


def _is_well_typed(event: NewEvent) -> bool:
    """Say whether there is nothing to name; most of the time there is not."""
    attributes, snapshot = event.attributes, event.attributes.snapshot
    texts = (attributes.source, attributes.type, attributes.action, attributes.subject, attributes.reason)
    more = (attributes.run_id, snapshot.state, snapshot.from_state, snapshot.repo, snapshot.author, *snapshot.labels)
    return (
        all(type(text) is str for text in texts + more)
        and isinstance(event.data, dict)
        and isinstance(event.trace, dict)
        and (event.occurred_at is None or isinstance(event.occurred_at, datetime))
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
