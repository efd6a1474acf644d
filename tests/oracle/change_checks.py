"""Checks of deletions, restores and the stream that tells of them; each yields a line for each violation."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from tests.oracle.watch import DELETED, RESTORED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from tests.oracle.evidence import Document
    from tests.oracle.watched import Watched

_KEYS = {
    "_id",
    "tenant_id",
    "sequence",
    "event_type",
    "event_id",
    "task_id",
    "deleted_at",
    "prior_column",
    "prior_status",
    "writer_process_id",
    "occurred_at",
    "payload_version",
}
_PREFIXES = {DELETED: "task-deleted", RESTORED: "task-restored"}


def identity(event_type: str, card_id: str, deleted_at: datetime) -> str:
    """Return the id that an event of these must have."""
    milliseconds = deleted_at.microsecond // 1_000
    return f"{_PREFIXES[event_type]}:{card_id}:{deleted_at:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def numbered_without_holes(watched: Watched) -> Iterator[str]:
    """Check every number from the floor to the counter holds one event, and every one from 1 on one audit row."""
    times = Counter(int(event["sequence"]) for event in watched.events)
    for number in sorted({*range(watched.floor, watched.head + 1), *times}):
        if times[number] != 1 or not 1 <= number <= watched.head:
            yield f"number {number} of the stream holds {times[number]} events, the counter stands at {watched.head}"
    audited = Counter(int(row["detail"]["sequence"]) for row in watched.changes)
    for number in sorted({*range(1, watched.head + 1), *audited}):
        if audited[number] != 1:
            yield f"{audited[number]} audit rows tell of change {number} of {watched.head}"
    if len(watched.counters) > 1:
        yield f"the stream has {len(watched.counters)} counters"


def changes_are_audited_and_told(watched: Watched) -> Iterator[str]:
    """Check an event and its audit row are there together; only what was pruned leaves its audit row alone."""
    told = {event["event_id"]: event for event in watched.events}
    audited = {row["detail"]["event_id"]: row for row in watched.changes}
    for event_id, row in audited.items():
        event, number = told.get(event_id), int(row["detail"]["sequence"])
        if event is None and number >= watched.floor:
            yield f"change {event_id} is audited as {number}, and the stream does not tell of it"
        elif event is not None and _of_event(event) != _of_audit(row):
            yield f"change {event_id} is {_of_event(event)}, and audited as {_of_audit(row)}"
    for event_id in told.keys() - audited.keys():
        yield f"event {event_id} at {told[event_id]['sequence']} has no audit row"


def events_are_of_their_ids(watched: Watched) -> Iterator[str]:
    """Check an event's id is made of its own fields and its alone, and that it holds its fixed keys."""
    for event_id, count in Counter(event["event_id"] for event in watched.events).items():
        if count > 1:
            yield f"event id {event_id} is given {count} times"
    for event in watched.events:
        if event["event_id"] != identity(event["event_type"], event["task_id"], event["deleted_at"]):
            yield f"event {event['event_id']} is not named after what it tells"
        if event.keys() != _KEYS:
            yield f"event {event['event_id']} holds other keys: {sorted(event.keys() ^ _KEYS)}"


def cards_stand_as_told(watched: Watched) -> Iterator[str]:
    """Check a card's deletions and restores take turns, each deletion a later one, and the card is what they say."""
    changes: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for _, row in sorted(watched.ledger.items()):
        changes[row["subject"]].append((row["code"], row["detail"]["event_id"]))
    for card_id, found in sorted(changes.items()):
        for (before, earlier), (after, later) in zip([(RESTORED, ""), *found], found, strict=False):
            if before == after:
                yield f"card {card_id}: {later} follows {earlier or 'nothing'}"
            elif after == RESTORED and _instant(earlier) != _instant(later):
                yield f"card {card_id}: {later} undoes another deletion than {earlier}"
            elif after == DELETED and earlier and _instant(later) <= _instant(earlier):
                yield f"card {card_id}: {later} is no later than {earlier}"
    for card_id in sorted(watched.cards.keys() | changes.keys()):
        deleted_at = watched.cards.get(card_id, {}).get("deleted_at")
        last, event_id = changes.get(card_id, [(RESTORED, "")])[-1]
        gone = identity(DELETED, card_id, deleted_at) if deleted_at is not None else ""
        if gone != (event_id if last == DELETED else ""):
            yield f"card {card_id} is {gone or 'there'}, and the last change of it is {event_id or 'none'}"


def answered_changes_are_there(watched: Watched) -> Iterator[str]:
    """Check what was answered is in the audit, and nothing is that nobody asked for."""
    ids = {row["detail"]["event_id"] for row in watched.changes}
    made = Counter((row["code"], row["subject"]) for row in watched.changes)
    tried: Counter[tuple[str, str]] = Counter()
    for change in watched.watch.changes:
        tried[change.event_type, change.card_id] += 1
        if change.ended is None:
            continue
        if change.deleted_at is None:
            if not made[change.event_type, change.card_id]:
                yield f"{change.event_type} of {change.card_id} was answered, and is not there"
        elif (wanted := identity(change.event_type, change.card_id, change.deleted_at)) not in ids:
            yield f"{wanted} was answered, and is not there"
    for (event_type, card_id), count in sorted(made.items()):
        if count > tried[event_type, card_id]:
            asked = tried[event_type, card_id]
            yield f"{event_type} of {card_id} is there {count} times, and was asked for {asked} times"


def numbered_in_the_order_of_commits(watched: Watched) -> Iterator[str]:
    """Check that what began after another was answered has the higher number, and that times do not go back."""
    numbers = {row["detail"]["event_id"]: number for number, row in watched.ledger.items()}
    placed = [
        (change, number)
        for change in watched.watch.changes
        if change.fresh and change.deleted_at is not None
        if (number := numbers.get(identity(change.event_type, change.card_id, change.deleted_at))) is not None
    ]
    for earlier, low in placed:
        for later, high in placed:
            if earlier.ended is not None and earlier.ended < later.began and low >= high:
                yield f"change {low} was answered before change {high} began"
    for before, after in zip(watched.events, watched.events[1:], strict=False):
        if after["occurred_at"] < before["occurred_at"]:
            yield f"event {after['sequence']} occurred before event {before['sequence']}"


def noticed_at_most_once(watched: Watched) -> Iterator[str]:
    """Check there is at most one notice of a change, and none of what is not there."""
    ids = {row["detail"]["event_id"] for row in watched.changes}
    for event_id, count in Counter(watched.watch.notices).items():
        if count > 1:
            yield f"of {event_id} there were {count} notices"
        if event_id not in ids:
            yield f"of {event_id} there was a notice, and it is not there"


def _of_event(event: Document) -> tuple[Any, ...]:
    return event["event_type"], event["task_id"], event["sequence"]


def _of_audit(row: Document) -> tuple[Any, ...]:
    return row["code"], row["subject"], row["detail"]["sequence"]


def _instant(event_id: str) -> str:
    return event_id.split(":", 2)[2]
