"""The lifecycle stream of one tenant on lifecycle_sequences and lifecycle_outbox."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pymongo import ReturnDocument

from outbox_core.adapters.mongo.documents import StoredDocument, Whole, decode_leniently, raw, why_invalid
from outbox_core.adapters.mongo.edges import NOW
from outbox_core.adapters.mongo.errors import DUPLICATE_KEY, translated
from outbox_core.adapters.mongo.event_log import whole_number
from outbox_core.adapters.mongo.inserts import insert_all
from outbox_core.adapters.mongo.lifecycle_documents import entry_of, event_document
from outbox_core.adapters.mongo.transactions import session_of
from outbox_core.domain.errors import EventConflictError, InvariantError, UnstorableRowError
from outbox_core.domain.identity import join_key
from outbox_core.domain.lifecycle_event import LifecycleChange, LifecycleEvent, event_type
from outbox_core.ports.lifecycle_stream import Page

if TYPE_CHECKING:
    from datetime import timedelta

    from pymongo.client_session import ClientSession
    from pymongo.database import Database

    from outbox_core.ports.transactions import Transaction

SEQUENCES = "lifecycle_sequences"
OUTBOX = "lifecycle_outbox"

_IN_ORDER = [("tenant_id", 1), ("sequence", 1)]
_BY_SEQUENCE = ("tenant_id", "sequence")


class CounterDocument(StoredDocument):
    """A tenant's counter in lifecycle_sequences."""

    last_sequence: Whole
    numbered_at: datetime


class MongoLifecycleStream:
    """Implements ports.lifecycle_stream.LifecycleStream."""

    def __init__(self, database: Database[dict[str, Any]], tenant_id: str) -> None:
        self._tenant = tenant_id
        self._client = database.client
        self._sequences = database[SEQUENCES]
        self._outbox = database[OUTBOX]

    def append(self, change: LifecycleChange, transaction: Transaction) -> LifecycleEvent:
        """See the port. The counter is written inside the transaction: an abort gives the number back."""
        event_type(change.event_type)
        session = session_of(transaction)
        counter = self._next(transaction.database[SEQUENCES], session)
        event = LifecycleEvent(
            tenant_id=self._tenant,
            sequence=counter.last_sequence,
            occurred_at=counter.numbered_at,
            **{one.name: getattr(change, one.name) for one in fields(LifecycleChange)},
        )
        document = {"_id": join_key(self._tenant, event.event_id), **event_document(event)}
        for refused in insert_all(transaction.database[OUTBOX], [document], session):
            if refused.code != DUPLICATE_KEY:
                raise UnstorableRowError(f"{event.event_id} cannot be stored: {refused.reason}")
            if refused.key == _BY_SEQUENCE:
                raise EventConflictError(taken=[event.sequence])
            raise EventConflictError(duplicates=[event.event_id])
        return event

    def _next(self, sequences: Any, session: ClientSession | None) -> CounterDocument:  # noqa: ANN401 - the port's one named leak
        update = {
            "tenant_id": {"$literal": self._tenant},
            "last_sequence": {"$add": [{"$ifNull": ["$last_sequence", 0]}, 1]},
            "numbered_at": NOW,
        }
        with translated():
            found = sequences.find_one_and_update(
                {"_id": self._tenant},
                [{"$set": update}],
                upsert=True,
                return_document=ReturnDocument.AFTER,
                session=session,
            )
        try:
            return CounterDocument.model_validate(found)
        except ValueError as error:
            raise InvariantError(
                f"the lifecycle counter of tenant {self._tenant} is damaged: {why_invalid(error)}"
            ) from error

    def head(self) -> int:
        """See the port."""
        with translated():
            return self._head(None)

    def read_after(self, sequence: int, limit: int) -> Page:
        """See the port. Rows that were read first would lack what committed before the head was read."""
        with translated(), self._client.start_session(causal_consistency=True) as session:
            head = self._head(session)
            if head <= sequence:
                return Page(head, ())
            query = {"tenant_id": self._tenant, "sequence": {"$gt": sequence, "$lte": head}}
            found = raw(self._outbox).find(query, session=session).sort("sequence", 1).limit(limit).batch_size(limit)
            documents = list(found)
        # A document under no whole number is nobody's event: the unique index knows 2, 2.0 and a decimal 2 as one.
        numbered = [(document, whole_number(decode_leniently(document).get("sequence"))) for document in documents]
        return Page(head, tuple(entry_of(document, number) for document, number in numbered if number is not None))

    def floor(self) -> int:
        """See the port. The head first: a row that commits after it is not above what is answered."""
        with translated(), self._client.start_session(causal_consistency=True) as session:
            head = self._head(session)
            query = {"tenant_id": self._tenant, "sequence": {"$gt": 0}}
            found = self._outbox.find(query, {"_id": 0, "sequence": 1}, session=session).sort("sequence", 1).limit(1)
            lowest = next((whole_number(row["sequence"]) for row in found), None)
        return head + 1 if lowest is None else lowest

    def prune(self, up_to: int, older_than: timedelta, limit: int) -> int:
        """See the port.

        The delete walks the index upwards, which its hint demands: where it ends in the middle, by a kill or a
        failover, what is left is still a stream without holes above its floor.
        """
        ripe = {"$subtract": [NOW, int(older_than.total_seconds() * 1_000)]}
        query = {"tenant_id": self._tenant, "sequence": {"$lte": up_to}}
        # What has no date at all is old: every consumer has passed it.
        wanted = {"_id": 0, "sequence": 1, "old": {"$lt": ["$occurred_at", ripe]}}
        with translated():
            last = None
            for row in self._outbox.find(query, wanted).sort("sequence", 1).limit(limit).batch_size(limit + 1):
                if not row["old"]:
                    break
                last = row["sequence"]
            if last is None:
                return 0
            over = {"tenant_id": self._tenant, "sequence": {"$lte": last}}
            return self._outbox.delete_many(over, hint=_IN_ORDER).deleted_count

    def _head(self, session: ClientSession | None) -> int:
        found = self._sequences.find_one({"_id": self._tenant}, {"last_sequence": 1}, session=session)
        head = 0 if found is None else whole_number(found.get("last_sequence"))
        if head is None:
            raise InvariantError(f"the lifecycle counter of tenant {self._tenant} is damaged: it is no whole number")
        return head
