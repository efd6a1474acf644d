"""The log of one tenant on the twin: `event_sequences` and `board_events`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.adapters.memory.documents import (
    Fields,
    attributes_of,
    document_id,
    storable_document,
)
from outbox_core.adapters.memory.transactions import inside
from outbox_core.domain.errors import EventConflictError, InvalidInputError, InvariantError
from outbox_core.domain.event import Event, Tombstone, Undecodable, tombstone_id
from outbox_core.domain.identity import join_key, require_own
from outbox_core.domain.sequence import Horizon, missing_between
from outbox_core.ports.event_log import Allocation, Head

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from outbox_core.adapters.memory.database import Document, MemoryDatabase, MemoryTransaction
    from outbox_core.domain.event import LogEntry
    from outbox_core.ports.transactions import Transaction

_SEQUENCES = "event_sequences"
_EVENTS = "board_events"


class MemoryEventLog:
    """Implements ports.event_log.EventLog."""

    def __init__(self, database: MemoryDatabase, tenant_id: str) -> None:
        self._database = database
        self._tenant_id = tenant_id

    def allocate(self, count: int) -> Allocation:
        """See the port."""
        if count < 1:
            raise InvariantError(f"cannot allocate {count} numbers")
        with self._database.lock:
            counter = self._counter() or {"_id": self._tenant_id, "tenant_id": self._tenant_id}
            last_seq, was_undrained = counter.get("last_seq", 0), counter.get("undrained", False)
            changed = {
                "last_seq": last_seq + count,
                "was_undrained": was_undrained,
                "undrained": True,
                "numbered_at": self._database.clock.now(),
            }
            self._database.put(_SEQUENCES, {**counter, **changed})
            return Allocation(last_seq + 1, count, changed["numbered_at"], was_undrained)

    def insert(self, events: Sequence[Event], transaction: Transaction | None = None) -> None:
        """See the port."""
        documents = [self._document(event) for event in events]
        opened = inside(transaction)
        duplicates: set[str] = set()
        taken: set[int] = set()
        with self._database.lock:
            for document in documents:
                refused = self._database.insert(_EVENTS, document, opened)
                if refused == ("tenant_id", "seq"):
                    taken.add(document["seq"])
                elif refused:
                    duplicates.add(document["event_id"])
                if refused and opened is not None:
                    opened.undo()
                    break
        if duplicates or taken:
            raise EventConflictError(duplicates=duplicates, taken=taken)

    def fill(self, seqs: Sequence[int]) -> int:
        """See the port."""
        with self._database.lock:
            landed = 0
            for seq in sorted(seqs):
                event_id = tombstone_id(seq)
                tombstone = {
                    "_id": join_key(self._tenant_id, event_id),
                    "tenant_id": self._tenant_id,
                    "seq": seq,
                    "event_id": event_id,
                    "void": True,
                }
                landed += self._database.insert(_EVENTS, tombstone) is None
            return landed

    def find(self, event_ids: Iterable[str], transaction: Transaction | None = None) -> Mapping[str, int]:
        """See the port."""
        with self._database.lock:
            found = self._under(event_ids, inside(transaction))
            return {document["event_id"]: document["seq"] for document in found}

    def get(self, event_ids: Iterable[str]) -> Mapping[str, Event | Undecodable]:
        """See the port."""
        with self._database.lock:
            entries = {document["event_id"]: _entry(document) for document in self._under(event_ids)}
        return {event_id: entry for event_id, entry in entries.items() if not isinstance(entry, Tombstone)}

    def read_after(self, seq: int, limit: int) -> Sequence[LogEntry]:
        """See the port."""
        with self._database.lock:
            above = sorted((d for d in self._own() if d["seq"] > seq), key=lambda document: document["seq"])
            return [_entry(document) for document in above[:limit]]

    def head(self) -> Head:
        """See the port."""
        with self._database.lock:
            return Head(last_seq=(self._counter() or {}).get("last_seq", 0), now=self._database.clock.now())

    def horizon(self, after: int) -> Horizon:
        """See the port."""
        with self._database.lock:
            seqs = sorted(document["seq"] for document in self._own() if document["seq"] > after)
        highest = max(seqs, default=after)
        return Horizon(highest, tuple(missing_between(after, seqs, highest)))

    def clear_undrained(self, reached_seq: int) -> bool:
        """See the port."""
        with self._database.lock:
            counter = self._counter()
            if counter is None:
                return True
            if counter["last_seq"] != reached_seq:
                return False
            self._database.put(_SEQUENCES, {**counter, "undrained": False})
            return True

    def flag_undrained(self) -> bool:
        """See the port."""
        with self._database.lock:
            counter = self._counter()
            if counter is None or counter.get("undrained", False):
                return False
            self._database.put(_SEQUENCES, {**counter, "undrained": True})
            return True

    def _counter(self) -> Document | None:
        return self._database.get(_SEQUENCES, self._tenant_id)

    def _own(self) -> Iterator[Document]:
        """Give every event that has a number; one without is not of the log."""
        for document in self._database.documents(_EVENTS).values():
            if document.get("tenant_id") == self._tenant_id and isinstance(document.get("seq"), int):
                yield document

    def _under(self, event_ids: Iterable[str], opened: MemoryTransaction | None = None) -> Iterator[Document]:
        for event_id in event_ids:
            key = self._database.entry(_EVENTS, opened, tenant_id=self._tenant_id, event_id=event_id)
            document = None if key is None else self._database.get(_EVENTS, key, opened)
            if document is not None:
                yield document

    def _document(self, event: Event) -> Document:
        require_own(self._tenant_id, event.tenant_id, "an event")
        try:
            return storable_document(
                {
                    "_id": join_key(event.tenant_id, event.event_id),
                    "tenant_id": event.tenant_id,
                    "seq": event.seq,
                    "event_id": event.event_id,
                    **event.attributes.document(),
                    "data": dict(event.data),
                    "trace": dict(event.trace),
                    "occurred_at": event.occurred_at,
                    "recorded_at": event.recorded_at,
                }
            )
        except ValueError as error:
            raise InvalidInputError(f"event {event.event_id} cannot be stored: {error}") from error


def _entry(document: Document) -> LogEntry:
    if document.get("void") is True:
        return Tombstone(document["seq"])
    try:
        fields = Fields(document)
        return Event(
            tenant_id=fields.text("tenant_id", None),
            seq=fields.number("seq"),
            event_id=fields.text("event_id", None),
            attributes=attributes_of(fields),
            data=storable_document(fields.mapping("data")),
            trace=fields.carrier("trace"),
            occurred_at=fields.instant_or_none("occurred_at"),
            recorded_at=fields.instant("recorded_at"),
        )
    except ValueError as error:
        return Undecodable(document["seq"], document_id(document), str(error))
