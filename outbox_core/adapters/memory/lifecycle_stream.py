"""The lifecycle stream of one tenant on the twin: `lifecycle_sequences` and `lifecycle_outbox`."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING

from outbox_core.adapters.memory.lifecycle_documents import entry_of, event_document
from outbox_core.adapters.memory.transactions import inside
from outbox_core.domain.errors import EventConflictError, InvariantError
from outbox_core.domain.identity import join_key
from outbox_core.domain.lifecycle_event import LifecycleChange, LifecycleEvent, event_type
from outbox_core.ports.lifecycle_stream import Page

if TYPE_CHECKING:
    from datetime import timedelta

    from outbox_core.adapters.memory.database import Document, MemoryDatabase
    from outbox_core.ports.transactions import Transaction

_SEQUENCES = "lifecycle_sequences"
_OUTBOX = "lifecycle_outbox"


class MemoryLifecycleStream:
    """Implements ports.lifecycle_stream.LifecycleStream."""

    def __init__(self, database: MemoryDatabase, tenant_id: str) -> None:
        self._database = database
        self._tenant_id = tenant_id

    def append(self, change: LifecycleChange, transaction: Transaction) -> LifecycleEvent:
        """See the port."""
        event_type(change.event_type)
        opened = inside(transaction)
        with self._database.lock:
            counter = self._database.get(_SEQUENCES, self._tenant_id, opened) or {"last_sequence": 0}
            event = LifecycleEvent(
                tenant_id=self._tenant_id,
                sequence=counter["last_sequence"] + 1,
                occurred_at=self._database.clock.now(),
                **{one.name: getattr(change, one.name) for one in fields(LifecycleChange)},
            )
            self._database.put(
                _SEQUENCES,
                {**counter, "_id": self._tenant_id, "tenant_id": self._tenant_id, "last_sequence": event.sequence},
                opened,
            )
            key = join_key(self._tenant_id, event.event_id)
            if self._database.insert(_OUTBOX, {"_id": key, **event_document(event)}, opened) is not None:
                if opened is not None:
                    opened.undo()
                raise EventConflictError(duplicates=[event.event_id])
        return event

    def head(self) -> int:
        """See the port."""
        with self._database.lock:
            counter = self._database.get(_SEQUENCES, self._tenant_id)
        head = 0 if counter is None else counter["last_sequence"]
        if not isinstance(head, int):
            raise InvariantError(f"the lifecycle counter of tenant {self._tenant_id} is damaged: it is no whole number")
        return head

    def read_after(self, sequence: int, limit: int) -> Page:
        """See the port."""
        with self._database.lock:
            head = self.head()
            found = [one for one in self.rows_after(sequence) if one["sequence"] <= head]
        return Page(head, tuple(entry_of(document) for document in found[:limit]))

    def floor(self) -> int:
        """See the port."""
        with self._database.lock:
            rows = self.rows_after(0)
            return int(rows[0]["sequence"]) if rows else self.head() + 1

    def prune(self, up_to: int, older_than: timedelta, limit: int) -> int:
        """See the port."""
        with self._database.lock:
            before = self._database.clock.now() - older_than
            removed = 0
            for document in self.rows_after(0)[:limit]:
                occurred_at = document["occurred_at"]
                # What has no time at all is old: every consumer has passed it.
                if document["sequence"] > up_to or (isinstance(occurred_at, datetime) and occurred_at >= before):
                    break
                self._database.delete(_OUTBOX, document["_id"])
                removed += 1
        return removed

    def rows_after(self, sequence: int) -> list[Document]:
        """Return the stored rows above a number, ascending."""
        found = self._database.documents(_OUTBOX).values()
        own = [one for one in found if one["tenant_id"] == self._tenant_id and one["sequence"] > sequence]
        return sorted(own, key=lambda document: document["sequence"])
