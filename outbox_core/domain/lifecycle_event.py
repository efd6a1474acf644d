"""The lifecycle stream's events: which types there are, and what each carries.

The registry is closed (L19): an event type joins by a line in `EVENT_TYPES`, which is a decision about every consumer,
and by nothing else. Payloads carry fixed keys and no prose (L03). Source: docs/decisions/0002.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from outbox_core.domain.errors import InvalidInputError

if TYPE_CHECKING:
    from datetime import datetime

PAYLOAD_VERSION = 1

CARD_DELETED = "task:deleted"
CARD_RESTORED = "task:restored"


class Standing(StrEnum):
    """What a card was before the change; a deletion takes an archived card as well."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventType:
    """One line of the registry: how its event ids begin, and whether a later change can make an event stale.

    Both types are identified by the card and its `deleted_at`, which no two deletions of a card share, and which is
    undone at most once.
    """

    name: str
    id_prefix: str
    superseded_by_restore: bool


EVENT_TYPES = {
    one.name: one
    for one in (
        EventType(name=CARD_DELETED, id_prefix="task-deleted", superseded_by_restore=True),
        EventType(name=CARD_RESTORED, id_prefix="task-restored", superseded_by_restore=False),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleChange:
    """What happened to a card, before the stream has given it a number.

    `deleted_at` is the deletion's identity, for a restore that of the deletion which it undoes, in whole milliseconds.
    `prior_column` and `prior_status` are the card's before the change. `writer_process_id` is the process that made it.
    """

    event_type: str
    task_id: str
    deleted_at: datetime
    prior_column: str
    prior_status: Standing
    writer_process_id: str

    @property
    def event_id(self) -> str:
        """`task-deleted:<card id>:<deleted_at>`, unique for its tenant."""
        return f"{event_type(self.event_type).id_prefix}:{self.task_id}:{instant_text(self.deleted_at)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleEvent(LifecycleChange):
    """An event of the stream; `occurred_at` is the server's time.

    A tenant's sequence numbers are in the order of the commits, from 1, without holes (L04).
    """

    tenant_id: str
    sequence: int
    occurred_at: datetime
    payload_version: int = PAYLOAD_VERSION


@dataclass(frozen=True, slots=True)
class UnreadableEvent:
    """A stored row that this version cannot give to an observer.

    `unknown` says that a newer version wrote a type which this one does not know: that is no failure of the event.
    """

    sequence: int
    event_id: str
    why: str
    unknown: bool


StreamEntry = LifecycleEvent | UnreadableEvent


def event_type(name: str) -> EventType:
    """Return the registry's line; raise InvalidInputError where there is none."""
    found = EVENT_TYPES.get(name)
    if found is None:
        raise InvalidInputError(f"{name!r} is no lifecycle event type; there are {', '.join(EVENT_TYPES)}")
    return found


def instant_text(instant: datetime) -> str:
    """Return an instant in UTC as it stands in event ids: 2026-11-30T15:00:00.000Z."""
    return f"{instant:%Y-%m-%dT%H:%M:%S}.{instant.microsecond // 1_000:03d}Z"


def superseded(event: LifecycleEvent, deleted_at: datetime | None) -> bool:
    """Say whether an event is not to be acted on any more, by its card's `deleted_at` as it is now (L18).

    A deletion is given to an observer only while the card is deleted by that very deletion.
    """
    return event_type(event.event_type).superseded_by_restore and deleted_at != event.deleted_at
