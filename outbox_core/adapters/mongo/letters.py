"""Dead letters: deliveries that were given up, each with its own copy of its event (L10, L11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo import ReturnDocument

from outbox_core.adapters.mongo.consumer_edges import edge_update, literal, plus_one
from outbox_core.adapters.mongo.consumer_rows import BY_ID, LETTERS, ConsumerRows, end_of
from outbox_core.adapters.mongo.documents import decode, raw, why_invalid
from outbox_core.adapters.mongo.edges import NOW
from outbox_core.adapters.mongo.errors import translated
from outbox_core.adapters.mongo.lifecycle_documents import event_document, letter_of
from outbox_core.adapters.mongo.transactions import session_of
from outbox_core.domain import delivery
from outbox_core.domain.consumer import LetterState
from outbox_core.domain.delivery import MAX_FAILURE_CLASS_CHARS, MAX_WHY_CHARS
from outbox_core.domain.errors import DefinitiveError, LeaseLostError, LetterNotFoundError
from outbox_core.domain.identity import join_key
from outbox_core.domain.lifecycle_event import LifecycleEvent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from pymongo.collection import Collection

    from outbox_core.domain.consumer import DeadLetter, Lease
    from outbox_core.domain.lifecycle_event import StreamEntry
    from outbox_core.ports.transactions import Transaction

_OPEN = [LetterState.UNRESOLVED.value, LetterState.REPLAYING.value]
_REPLAYING = [LetterState.REPLAYING.value]


class LetterRows(ConsumerRows):
    """The dead letters of one tenant."""

    def park(self, lease: Lease, entry: StreamEntry, *, read: int | None, attempts: int, failure_class: str) -> bool:
        """See the port; a letter of the same event, from before its consumer began anew, is opened again."""
        edge, consumer_id = delivery.PARK, lease.consumer.consumer_id
        update = edge_update(edge, number=entry.sequence)
        letter = {
            "tenant_id": self._tenant,
            "consumer_id": consumer_id,
            "event_id": entry.event_id,
            "sequence": entry.sequence,
            "event": event_document(entry) if isinstance(entry, LifecycleEvent) else None,
            "attempts": attempts,
            "failure_class": failure_class[:MAX_FAILURE_CLASS_CHARS],
            "state": LetterState.UNRESOLVED.value,
            "replays": 0,
            "settled_at": None,
            "settled_by": "",
            "settled_why": "",
        }

        def write(transaction: Transaction) -> None:
            at = self._move_in(transaction, edge, consumer_id, update, lease=lease, read=read)
            if at is None:
                raise LeaseLostError(f"{consumer_id}: its lease, or its cursor, is another's now")
            with translated():
                _letters_in(transaction).update_one(
                    {"_id": self._letter_key(consumer_id, entry.event_id)},
                    {"$set": {**letter, "parked_at": at}},
                    upsert=True,
                    session=session_of(transaction),
                )
            detail: dict[str, str | int] = {
                "event_id": entry.event_id,
                "attempts": attempts,
            }
            self._audit(transaction, edge.audit, consumer_id, at, detail)

        return self._under_lease(write) or self._was_done(lease, lambda row: row.cursor == entry.sequence)

    def letters(
        self, *, consumer_id: str | None = None, state: LetterState | None = None, after: str = "", limit: int = 100
    ) -> Sequence[DeadLetter]:
        """See the port; what does not decode is left out."""
        prefix = f"{self._tenant}|" if consumer_id is None else f"{self._key(consumer_id)}|"
        place = {"$gt": max(prefix, join_key(self._tenant, after)), "$lt": end_of(prefix)}
        query: dict[str, Any] = {"tenant_id": self._tenant, "_id": place}
        if state is not None:
            query["state"] = state.value
        with translated():
            found = raw(self._letters).find(query).sort("_id", 1).limit(limit).batch_size(limit)
            documents = list(found)
        letters = []
        for document in documents:
            try:
                letters.append(letter_of(decode(document)))
            except ValueError:
                continue
        return letters

    def letter(self, consumer_id: str, event_id: str) -> DeadLetter:
        """See the port."""
        return self._letter(consumer_id, event_id, None)

    def ask_replay(self, consumer_id: str, event_id: str, by: str, why: str) -> bool:
        """See the port; its consumer is due now."""

        def write(transaction: Transaction) -> bool:
            letter = self._letter(consumer_id, event_id, transaction)
            self._require_standing(consumer_id, transaction)
            if letter.state is not LetterState.UNRESOLVED:
                return False
            # A write of the row too: a retirement at the same time meets it.
            update = edge_update(delivery.ASK_REPLAY, idle_polls=0, next_poll_at=NOW)
            at = self._move_in(transaction, delivery.ASK_REPLAY, consumer_id, update)
            if at is None:
                return False
            asked = {"state": LetterState.REPLAYING.value, "replays": plus_one("replays")}
            self._settle(transaction, consumer_id, event_id, [LetterState.UNRESOLVED.value], asked)
            detail: dict[str, str | int] = {
                "event_id": event_id,
                "replays": letter.replays + 1,
            }
            self._audit(transaction, delivery.ASK_REPLAY.audit, consumer_id, at, detail, by=by, why=why)
            return True

        return self._transact(write)

    def replayed(self, lease: Lease, event_id: str, *, why: str) -> bool:
        """See the port; a letter that an operator has resolved meanwhile, or a first try of this call, is left so."""

        def write(transaction: Transaction) -> None:
            at = self._held_in(transaction, lease)
            self._settle(transaction, lease.consumer.consumer_id, event_id, _REPLAYING, _resolved(at, lease, why))

        return self._under_lease(write)

    def replayed_in(self, transaction: Transaction, lease: Lease, event_id: str, *, why: str) -> None:
        """See the port; where the letter is settled already, what the observer wrote now must not commit beside it."""
        consumer_id, at = lease.consumer.consumer_id, self._held_in(transaction, lease)
        if not self._settle(transaction, consumer_id, event_id, _REPLAYING, _resolved(at, lease, why)):
            raise LeaseLostError(f"{consumer_id}: the letter {event_id} does not wait for its replay any more")

    def replay_failed(self, lease: Lease, event_id: str, *, failure_class: str) -> bool:
        """See the port."""
        back = {
            "state": LetterState.UNRESOLVED.value,
            "failure_class": literal(failure_class[:MAX_FAILURE_CLASS_CHARS]),
        }

        def write(transaction: Transaction) -> None:
            self._held_in(transaction, lease)
            self._settle(transaction, lease.consumer.consumer_id, event_id, _REPLAYING, back)

        return self._under_lease(write)

    def resolve(self, consumer_id: str, event_id: str, by: str, why: str) -> bool:
        """See the port."""

        def write(transaction: Transaction) -> bool:
            self._letter(consumer_id, event_id, transaction)
            settled = {
                "state": LetterState.RESOLVED.value,
                "settled_at": NOW,
                "settled_by": literal(by[:MAX_WHY_CHARS]),
                "settled_why": literal(why[:MAX_WHY_CHARS]),
            }
            at = self._settle(transaction, consumer_id, event_id, _OPEN, settled)
            if at is None:
                return False
            detail: dict[str, str | int] = {
                "event_id": event_id,
            }
            self._audit(transaction, delivery.AUDIT_RESOLVED, consumer_id, at, detail, by=by, why=why)
            return True

        return self._transact(write)

    def prune_letters(self, older_than: timedelta, limit: int) -> int:
        """See the port."""
        ripe = {"$subtract": [NOW, int(older_than.total_seconds() * 1_000)]}
        query = {
            "tenant_id": self._tenant,
            "state": LetterState.RESOLVED.value,
            "$expr": {"$lt": ["$settled_at", ripe]},
        }
        with translated():
            found = [row["_id"] for row in self._letters.find(query, {"_id": 1}).limit(limit).batch_size(limit + 1)]
            if not found:
                return 0
            over = {"_id": {"$in": found}, "tenant_id": self._tenant, "state": LetterState.RESOLVED.value}
            return self._letters.delete_many(over, hint=BY_ID).deleted_count

    def _resolve_all(self, transaction: Transaction, consumer_id: str, at: datetime, by: str) -> None:
        """Resolve what a consumer leaves behind that is retired."""
        query = {"tenant_id": self._tenant, "consumer_id": consumer_id, "state": {"$in": _OPEN}}
        settled = {
            "state": LetterState.RESOLVED.value,
            "settled_at": at,
            "settled_by": by[:MAX_WHY_CHARS],
            "settled_why": "its consumer was retired",
        }
        prefix = f"{self._key(consumer_id)}|"
        place = {"_id": {"$gt": prefix, "$lt": end_of(prefix)}}
        with translated():
            session = session_of(transaction)
            _letters_in(transaction).update_many({**query, **place}, {"$set": settled}, session=session)

    def _held_in(self, transaction: Transaction, lease: Lease) -> datetime:
        """Write the consumer's row, so that this commits only while its lease holds; return the server's time."""
        consumer_id = lease.consumer.consumer_id
        update = edge_update(delivery.RENEW, heartbeat_at=NOW)
        at = self._move_in(transaction, delivery.RENEW, consumer_id, update, lease=lease)
        if at is None:
            raise LeaseLostError(f"{consumer_id}: its lease is another's now")
        return at

    def _settle(
        self, transaction: Transaction, consumer_id: str, event_id: str, states: list[str], fields: dict[str, Any]
    ) -> datetime | None:
        """Change a letter that is in one of these states; return the server's time, None where it is in none."""
        with translated():
            found = _letters_in(transaction).find_one_and_update(
                {
                    "_id": self._letter_key(consumer_id, event_id),
                    "tenant_id": self._tenant,
                    "state": {"$in": states},
                },
                [{"$set": {**fields, "updated_at": NOW}}],
                return_document=ReturnDocument.AFTER,
                hint=BY_ID,
                session=session_of(transaction),
            )
        if found is None:
            return None
        at: datetime = found["updated_at"]
        return at

    def _letter(self, consumer_id: str, event_id: str, transaction: Transaction | None) -> DeadLetter:
        letters = self._letters if transaction is None else _letters_in(transaction)
        query = {"_id": self._letter_key(consumer_id, event_id), "tenant_id": self._tenant}
        with translated():
            found = raw(letters).find_one(query, session=session_of(transaction), hint=BY_ID)
        if found is None:
            raise LetterNotFoundError(f"consumer {consumer_id!r} has no dead letter {event_id!r}")
        try:
            return letter_of(decode(found))
        except ValueError as error:
            raise DefinitiveError(f"the dead letter {event_id!r} is malformed: {why_invalid(error)}") from error

    def _letter_key(self, consumer_id: str, event_id: str) -> str:
        return join_key(self._tenant, consumer_id, event_id)


def _letters_in(transaction: Transaction) -> Collection[dict[str, Any]]:
    letters: Collection[dict[str, Any]] = transaction.database[LETTERS]
    return letters


def _resolved(at: datetime, lease: Lease, why: str) -> dict[str, Any]:
    """Return what a replay that came to an end writes."""
    return {
        "state": LetterState.RESOLVED.value,
        "settled_at": at,
        "settled_by": literal(lease.consumer.consumer_id),
        "settled_why": literal(why[:MAX_WHY_CHARS]),
    }
