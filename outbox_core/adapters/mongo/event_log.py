"""The log of one tenant on event_sequences and board_events."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pymongo
from bson.decimal128 import Decimal128
from pydantic import Field
from pymongo import ReturnDocument

from outbox_core.adapters.mongo.documents import (
    StoredAttributes,
    StoredDocument,
    Whole,
    decode,
    decode_leniently,
    document_id,
    raw,
    why_invalid,
)
from outbox_core.adapters.mongo.errors import DUPLICATE_KEY, translated
from outbox_core.adapters.mongo.inserts import Rejection, insert_all
from outbox_core.adapters.mongo.transactions import session_of
from outbox_core.domain.errors import EventConflictError, InvalidInputError, InvariantError, UnstorableRowError
from outbox_core.domain.event import Event, LogEntry, Tombstone, Undecodable, tombstone_id
from outbox_core.domain.identity import join_key, require_own
from outbox_core.domain.limits import FILL_TIME, MAX_COMMAND_ROWS
from outbox_core.domain.sequence import Horizon, missing_between
from outbox_core.ports.event_log import Allocation, Head

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bson.raw_bson import RawBSONDocument
    from pymongo.collection import Collection
    from pymongo.database import Database

    from outbox_core.ports.transactions import Transaction

_BY_SEQ = ("tenant_id", "seq")


class EventDocument(StoredAttributes):
    """An event in board_events."""

    id: str = Field(alias="_id")
    tenant_id: str
    seq: int
    event_id: str
    data: dict[str, Any] = {}
    trace: dict[str, str] = {}
    occurred_at: datetime | None = None
    recorded_at: datetime


class SequenceDocument(StoredDocument):
    """A tenant's counter in event_sequences, as an allocation returns it."""

    last_seq: Whole
    was_undrained: bool
    numbered_at: datetime


class MongoEventLog:
    """Implements ports.event_log.EventLog."""

    def __init__(self, database: Database[dict[str, Any]], tenant_id: str) -> None:
        self._tenant = tenant_id
        self._database = database
        self._sequences = database["event_sequences"]
        self._events = database["board_events"]

    def allocate(self, count: int) -> Allocation:
        """See the port."""
        update = {
            "tenant_id": self._tenant,
            "last_seq": {"$add": [{"$ifNull": ["$last_seq", 0]}, count]},
            "was_undrained": {"$eq": ["$undrained", True]},
            "undrained": True,
            "numbered_at": "$$NOW",
        }
        with translated():
            found = self._sequences.find_one_and_update(
                {"_id": self._tenant}, [{"$set": update}], upsert=True, return_document=ReturnDocument.AFTER
            )
        try:
            document = SequenceDocument.model_validate(found)
        except ValueError as error:
            raise InvariantError(f"the counter of tenant {self._tenant} is damaged: {why_invalid(error)}") from error
        return Allocation(document.last_seq - count + 1, count, document.numbered_at, document.was_undrained)

    def insert(self, events: Sequence[Event], transaction: Transaction | None = None) -> None:
        """See the port."""
        documents = [self._to_document(event) for event in events]
        # A duplicate costs six inserts and a part of the answer: in one command many could never be told apart in time.
        at_once = MAX_COMMAND_ROWS if transaction is None else max(1, len(documents))
        refused: list[tuple[Event, Rejection]] = []
        try:
            for start in range(0, len(documents), at_once):
                chunk = documents[start : start + at_once]
                rejections = insert_all(self._events_in(transaction), chunk, session_of(transaction))
                refused += [(events[start + rejection.index], rejection) for rejection in rejections]
        except UnstorableRowError as error:
            raise InvalidInputError(f"an event cannot be stored: {error}") from error
        if not refused:
            return
        duplicates, taken = [], []
        for event, rejection in refused:
            if rejection.code != DUPLICATE_KEY:
                raise InvalidInputError(f"event {event.event_id} cannot be stored: {rejection.reason}")
            if rejection.key == _BY_SEQ:
                taken.append(event.seq)
            else:
                duplicates.append(event.event_id)
        raise EventConflictError(duplicates=duplicates, taken=taken)

    def fill(self, seqs: Sequence[int]) -> int:
        """See the port."""
        tombstones = [
            {
                "_id": join_key(self._tenant, tombstone_id(seq)),
                "tenant_id": self._tenant,
                "seq": seq,
                "event_id": tombstone_id(seq),
                "void": True,
            }
            for seq in sorted(seqs)
        ]
        with pymongo.timeout(FILL_TIME.total_seconds()):
            return len(tombstones) - len(insert_all(self._events, tombstones))

    def find(self, event_ids: Iterable[str], transaction: Transaction | None = None) -> Mapping[str, int]:
        """See the port."""
        ids = list(event_ids)
        query = {"tenant_id": self._tenant, "event_id": {"$in": ids}}
        events, session = self._events_in(transaction), session_of(transaction)
        with translated():
            found = events.find(query, {"event_id": 1, "seq": 1}, session=session).batch_size(len(ids) + 1)
            return {event["event_id"]: event["seq"] for event in found}

    def get(self, event_ids: Iterable[str]) -> Mapping[str, Event | Undecodable]:
        """See the port."""
        ids = list(event_ids)
        query = {"tenant_id": self._tenant, "event_id": {"$in": ids}}
        with translated():
            documents = list(raw(self._events).find(query).batch_size(len(ids) + 1))
        entries = [(str(decode_leniently(document).get("event_id")), _to_entry(document)) for document in documents]
        return {event_id: entry for event_id, entry in entries if isinstance(entry, Event | Undecodable)}

    def read_after(self, seq: int, limit: int) -> Sequence[LogEntry]:
        """See the port."""
        query = {"tenant_id": self._tenant, "seq": {"$gt": seq}}
        with translated():
            documents = list(raw(self._events).find(query).sort("seq", 1).limit(limit).batch_size(limit))
        return [entry for document in documents if (entry := _to_entry(document)) is not None]

    def head(self) -> Head:
        """See the port."""
        with translated():
            found = self._sequences.find_one({"_id": self._tenant}, {"last_seq": 1, "now": "$$NOW"})
            if found is None:
                return Head(0, _aware(self._database.command("hello")["localTime"]))
        return Head(whole_number(found.get("last_seq")) or 0, found["now"])

    def horizon(self, after: int) -> Horizon:
        """See the port."""
        query = {"tenant_id": self._tenant, "seq": {"$gt": after}}
        with translated():
            found = [
                whole_number(event["seq"]) for event in self._events.find(query, {"_id": 0, "seq": 1}).sort("seq", 1)
            ]
        seqs = [number for number in found if number is not None]
        highest = max(seqs, default=after)
        return Horizon(highest, tuple(missing_between(after, seqs, highest)))

    def clear_undrained(self, reached_seq: int) -> bool:
        """See the port."""
        with translated():
            cleared = self._sequences.update_one(
                {"_id": self._tenant, "last_seq": reached_seq}, {"$set": {"undrained": False}}
            )
            return cleared.matched_count == 1 or self._sequences.find_one({"_id": self._tenant}, {"_id": 1}) is None

    def flag_undrained(self) -> bool:
        """See the port."""
        with translated():
            flagged = self._sequences.update_one(
                {"_id": self._tenant, "undrained": {"$ne": True}}, {"$set": {"undrained": True}}
            )
        return flagged.modified_count == 1

    def _events_in(self, transaction: Transaction | None) -> Collection[dict[str, Any]]:
        """Return the collection by the connection of the transaction's session: a caller's own is another client's."""
        if transaction is None:
            return self._events
        events: Collection[dict[str, Any]] = transaction.database["board_events"]
        return events

    def _to_document(self, event: Event) -> dict[str, Any]:
        require_own(self._tenant, event.tenant_id, "an event")
        return {
            "_id": join_key(self._tenant, event.event_id),
            "tenant_id": self._tenant,
            "seq": event.seq,
            "event_id": event.event_id,
            **event.attributes.document(),
            "data": dict(event.data),
            "trace": dict(event.trace),
            "occurred_at": event.occurred_at,
            "recorded_at": event.recorded_at,
        }


def _to_entry(document: RawBSONDocument) -> LogEntry | None:
    """Read one stored document; None where it stands under no whole number."""
    try:
        fields, error = decode(document), None
    except ValueError as not_decoded:
        fields, error = decode_leniently(document), not_decoded
    seq = whole_number(fields.get("seq"))
    if seq is None:
        return None
    if fields.get("void") is True:
        return Tombstone(seq)
    try:
        if error is not None:
            raise error
        stored = EventDocument.model_validate(fields)
    except ValueError as invalid:
        return Undecodable(seq, document_id(decode_leniently(document)), why_invalid(invalid))
    return Event(
        tenant_id=stored.tenant_id,
        seq=stored.seq,
        event_id=stored.event_id,
        attributes=stored.to_domain(),
        data=stored.data,
        trace=stored.trace,
        occurred_at=stored.occurred_at,
        recorded_at=stored.recorded_at,
    )


def whole_number(number: object) -> int | None:
    """Return a stored number as a whole one, None where it is none.

    The unique index takes 2, 2.0 and a decimal 2 for one number, so whichever of them stands there is no hole.
    """
    exact = number.to_decimal() if isinstance(number, Decimal128) else number
    if not isinstance(exact, int | float | Decimal):
        return None
    try:
        whole = int(exact)
    except (ValueError, OverflowError):  # What is not a number, and what is infinite.
        return None
    return whole if whole == exact else None


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
