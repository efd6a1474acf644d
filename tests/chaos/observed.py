"""What the observing of deletions came to, at rest: told by the cards' own log, the stream, the audit and the journal.

Independent of the product's reading of its own documents: everything is asked of the database as it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.chaos.calls import Call, Struck, unprovoked
from tests.chaos.journal import CONSUMERS, COUNTING, SEEN_ONCE
from tests.chaos.load import LIFE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pymongo.database import Database

    Documents = Sequence[Mapping[str, Any]]

LIFECYCLE = "lifecycle "
"""How the names of the figures begin."""

_ACTIONS = {"task:deleted": "deleted", "task:restored": "restored"}
_SUPERSEDED = "lifecycle-observation:event-superseded"
_POISONED = "lifecycle-observation:consumer-poisoned"
_RECONCILED = "lifecycle-observation:consumer-reconciled"


@dataclass(slots=True)
class Judged:
    """The figures, and each broken promise in one line."""

    violations: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)


def head_of(database: Database[dict[str, Any]]) -> int:
    """Return the number of the stream's last event."""
    counter = database["lifecycle_sequences"].find_one({"_id": LIFE}) or {}
    return int(counter.get("last_sequence", 0))


def cursors_of(database: Database[dict[str, Any]]) -> dict[str, int]:
    """Return how far each consumer has come."""
    rows = database["lifecycle_consumer_cursors"].find({"tenant_id": LIFE})
    return {row["consumer_id"]: int(row.get("last_acked_sequence") or 0) for row in rows}


def judge_lifecycle(database: Database[dict[str, Any]], calls: Sequence[Call], struck: Sequence[Struck]) -> Judged:
    """Judge the stream and each consumer; all must be at rest."""
    stream = list(database["lifecycle_outbox"].find({"tenant_id": LIFE}).sort("sequence", 1))
    audit = list(database["run_audit"].find({"tenant_id": LIFE}))
    judged = Judged()
    judged.violations += _numbered(stream, head_of(database))
    judged.violations += _told_once(database, stream, audit)
    judged.violations += _cards_agree(database, stream)
    letters = list(database["lifecycle_dead_letters"].find({"tenant_id": LIFE}))
    seen = [one["event_id"] for one in database[SEEN_ONCE].find({}, {"event_id": 1}).sort("_id", 1)]
    cursors = cursors_of(database)
    for consumer_id in CONSUMERS:
        mine = [call for call in calls if call.what.startswith(f"{consumer_id}|")]
        one = Observed(consumer_id, stream, audit, letters, mine)
        found = [*one.kept_up(cursors.get(consumer_id)), *one.told_all(seen), *one.in_order(struck), *one.tries()]
        found += _exactly_once(seen, one) if consumer_id == COUNTING else one.repeats(struck)
        judged.violations += [f"{consumer_id}: {line}" for line in found]
        judged.figures.update(one.figures())
    judged.figures.update(Counter(f"{LIFECYCLE}events {row['event_type']}" for row in stream))
    return judged


def _numbered(stream: Documents, head: int) -> Iterator[str]:
    numbers = [row["sequence"] for row in stream]
    if numbers != list(range(1, head + 1)):
        yield f"the stream is numbered {numbers}, and its counter says {head}: events are lost, or doubled"


def _told_once(database: Database[dict[str, Any]], stream: Documents, audit: Documents) -> Iterator[str]:
    """Check each change of a card that the log tells of has one event and one audit row, and these nothing else."""
    changes = database["board_events"].find({"tenant_id": LIFE, "action": {"$in": list(_ACTIONS.values())}})
    logged = Counter((event["subject"], event["action"]) for event in changes)
    told = Counter((row["task_id"], _ACTIONS.get(row["event_type"], row["event_type"])) for row in stream)
    for card, action in sorted(logged.keys() | told.keys()):
        if logged[card, action] != told[card, action]:
            yield f"{card} was {action} {logged[card, action]} times, the stream tells {told[card, action]} times"
    events = Counter((row["event_type"], row["event_id"], row["sequence"]) for row in stream)
    rows = Counter(
        (row["code"], row["detail"].get("event_id"), row["detail"].get("sequence"))
        for row in audit
        if row["code"] in _ACTIONS
    )
    for code, event_id, sequence in sorted(events.keys() | rows.keys(), key=str):
        counts = events[code, event_id, sequence], rows[code, event_id, sequence]
        if counts != (1, 1):
            yield f"{event_id} is {counts[0]} times in the stream under {sequence}, and {counts[1]} times in the audit"


def _cards_agree(database: Database[dict[str, Any]], stream: Documents) -> Iterator[str]:
    """Check each card was deleted and restored in turns, each deletion at a time of its own, and the last stands."""
    by_card: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in stream:
        by_card[row["task_id"]].append(row)
    stands = {
        card.get("card_id", card["_id"]): card.get("deleted_at")
        for card in database["board_cards"].find({"tenant_id": LIFE})
    }
    for card, rows in by_card.items():
        deleted_at = before = None
        for row in rows:
            if (row["event_type"] == "task:deleted") != (deleted_at is None):
                yield f"{card}: {row['event_id']} follows on one of its kind"
            if deleted_at is not None and row["deleted_at"] != deleted_at:
                yield f"{card}: {row['event_id']} undoes another deletion than the last one"
            if deleted_at is None and before is not None and row["deleted_at"] <= before:
                yield f"{card}: {row['event_id']} is not later than the deletion before it"
            before = row["deleted_at"]
            deleted_at = row["deleted_at"] if row["event_type"] == "task:deleted" else None
        if stands.get(card) != deleted_at:
            yield f"{card} is stored with deleted_at {stands.get(card)}, its last event says {deleted_at}"


class Observed:
    """What one consumer was told, by its own lines, and what is recorded instead."""

    def __init__(
        self, consumer_id: str, stream: Documents, audit: Documents, letters: Documents, calls: Sequence[Call]
    ) -> None:
        self.consumer_id = consumer_id
        self._numbers = {row["event_id"]: row["sequence"] for row in stream}
        self._undone = {
            f"task-deleted:{row['event_id'].partition(':')[2]}"
            for row in stream
            if row["event_type"] == "task:restored"
        }
        recorded = [row for row in audit if row["subject"] == consumer_id]
        passed = (row["detail"]["event_ids"].split(",") for row in recorded if row["code"] == _SUPERSEDED)
        self.superseded = Counter(event_id for ids in passed for event_id in ids)
        self._reconciled = sum(row["code"] == _RECONCILED for row in recorded)
        poisoned = sum(row["code"] == _POISONED for row in recorded)
        self.parked = {letter["event_id"] for letter in letters if letter["consumer_id"] == consumer_id}
        self._unaudited = len(self.parked) - poisoned
        self.calls = [(call.what.partition("|")[2], call) for call in calls]
        self.by_event: dict[str, list[Call]] = defaultdict(list)
        for event_id, call in self.calls:
            self.by_event[event_id].append(call)

    def kept_up(self, cursor: int | None) -> Iterator[str]:
        """Check it stands at the head, and came there by observing alone."""
        if cursor != (head := max(self._numbers.values(), default=0)):
            yield f"its cursor is {cursor}, the head {head}"
        if self._reconciled:
            yield f"it reconciled {self._reconciled} times, and nothing was ever pruned"
        if self._unaudited:
            yield f"{len(self.parked)} events are dead letters, {self._unaudited} of them not in the audit"

    def told_all(self, seen: Sequence[str]) -> Iterator[str]:
        """Check each event was observed, or is recorded as superseded or parked, and none that is not in the stream."""
        for event_id in self._numbers:
            observed = any(call.complete for call in self.by_event[event_id])
            if self.consumer_id == COUNTING:
                # Its return means nothing before the commit.
                observed = event_id in seen
            if not (observed or self.superseded[event_id] or event_id in self.parked):
                yield f"{event_id} was never observed, and nothing is recorded instead"
        for event_id in sorted(self.by_event.keys() | self.superseded.keys()):
            if event_id not in self._numbers:
                yield f"{event_id} was observed, and is not in the stream"
        for event_id, times in self.superseded.items():
            if times > 1 or event_id not in self._undone:
                yield f"{event_id} is recorded as superseded {times} times, and restored {event_id in self._undone}"

    def in_order(self, struck: Sequence[Struck]) -> Iterator[str]:
        """Check no event was begun for the first time after one that follows on it.

        But one that another process had passed as superseded meanwhile: whoever was about to tell it was paused then.
        """
        begun: set[str] = set()
        last = 0
        for event_id, call in self.calls:
            number = self._numbers.get(event_id, 0)
            if event_id not in begun and number < last:
                was_paused = any(one.pids and call.pid in one.pids for one in struck)
                if not (was_paused and self.superseded[event_id]):
                    yield f"{event_id}, number {number}, was begun after number {last}"
            begun.add(event_id)
            last = max(last, number)

    def tries(self) -> Iterator[str]:
        """Check no event counts more failed tries than it has failed: a death is none, and each starts at zero."""
        for event_id, calls in self.by_event.items():
            failed = 0
            for call in calls:
                if call.attempt > failed + 1:
                    yield f"{event_id} was told as try {call.attempt} after {failed} failed ones"
                failed += call.failed

    def repeats(self, struck: Sequence[Struck]) -> Iterator[str]:
        """Check each repeat of what was observed has a cause: its process or the database was struck."""
        for calls in self.by_event.values():
            yield from unprovoked(calls, struck)

    def figures(self) -> dict[str, int]:
        """Return what it came to."""
        complete = {event_id: sum(call.complete for call in calls) for event_id, calls in self.by_event.items()}
        repeats = sum(times - 1 for times in complete.values() if times > 1)
        again = "tried again for a commit" if self.consumer_id == COUNTING else "observed again"
        return {
            f"{LIFECYCLE}events observed": sum(times > 0 for times in complete.values()),
            f"{LIFECYCLE}events {again}": repeats,
            f"{LIFECYCLE}tries failed": sum(call.failed for _, call in self.calls),
            f"{LIFECYCLE}tries cut off": sum(call.end is None for _, call in self.calls),
            f"{LIFECYCLE}events superseded": self.superseded.total(),
            f"{LIFECYCLE}dead letters": len(self.parked),
        }


def _exactly_once(seen: Sequence[str], one: Observed) -> Iterator[str]:
    """Check each event is in the database once, or is recorded instead, and never both."""
    counted = Counter(seen)
    for event_id in sorted(one.by_event.keys() | counted.keys() | one.superseded.keys()):
        instead = one.superseded[event_id] + (event_id in one.parked)
        if counted[event_id] + instead != 1:
            yield f"{event_id} happened {counted[event_id]} times, and is recorded instead {instead} times"
