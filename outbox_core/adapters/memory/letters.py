"""Dead letters on the twin: deliveries that were given up, each with its own copy of its event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.adapters.memory.consumer_rows import CURSORS, LETTERS, ConsumerRows
from outbox_core.adapters.memory.documents import storable_document
from outbox_core.adapters.memory.lifecycle_documents import event_document, letter_of
from outbox_core.adapters.memory.transactions import inside
from outbox_core.domain import delivery
from outbox_core.domain.consumer import DeadLetter, Lease, LetterState
from outbox_core.domain.errors import (
    LetterNotFoundError,
)
from outbox_core.domain.identity import join_key
from outbox_core.domain.lifecycle_event import LifecycleEvent
from outbox_core.ports.consumers import letter_key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from outbox_core.adapters.memory.database import Document, MemoryTransaction
    from outbox_core.domain.lifecycle_event import StreamEntry
    from outbox_core.ports.transactions import Transaction


class LetterRows(ConsumerRows):
    """The dead letters of one tenant."""

    def park(self, lease: Lease, entry: StreamEntry, *, read: int | None, attempts: int, failure_class: str) -> bool:
        """See the port."""
        with self._database.lock:
            held = self._held(lease, delivery.PARK, read=read)
            consumer_id, event_id = lease.consumer.consumer_id, entry.event_id
            if held is None:
                return self._stands_at(lease, entry.sequence)
            letter = {
                "_id": join_key(self._tenant_id, letter_key(consumer_id, event_id)),
                "tenant_id": self._tenant_id,
                "consumer_id": consumer_id,
                "event_id": event_id,
                "sequence": entry.sequence,
                "event": event_document(entry) if isinstance(entry, LifecycleEvent) else None,
                "attempts": attempts,
                "failure_class": failure_class,
                "parked_at": self._now(),
                "state": LetterState.UNRESOLVED.value,
                "replays": 0,
            }
            self._database.put(LETTERS, storable_document(letter))
            self._database.put(CURSORS, {**held, **self._moved(delivery.PARK, entry.sequence)})
            self._told(delivery.PARK, held, "", "", {"event_id": event_id, "attempts": attempts})
            return True

    def letters(
        self, *, consumer_id: str | None = None, state: LetterState | None = None, after: str = "", limit: int = 100
    ) -> Sequence[DeadLetter]:
        """See the port."""
        with self._database.lock:
            found = [
                letter_of(letter)
                for letter in self._letters(consumer_id)
                if state in {None, LetterState(letter["state"])}
            ]
        keyed = sorted((letter_key(letter.consumer_id, letter.event_id), letter) for letter in found)
        return [letter for key, letter in keyed if key > after][:limit]

    def letter(self, consumer_id: str, event_id: str) -> DeadLetter:
        """See the port."""
        with self._database.lock:
            return letter_of(self._letter(consumer_id, event_id))

    def ask_replay(self, consumer_id: str, event_id: str, by: str, why: str) -> bool:
        """See the port."""
        with self._database.lock:
            letter = self._letter(consumer_id, event_id)
            consumer = self._active(consumer_id)
            if letter["state"] != LetterState.UNRESOLVED:
                return False
            replays = letter.get("replays", 0) + 1
            self._database.put(LETTERS, {**letter, "state": LetterState.REPLAYING.value, "replays": replays})
            self._database.put(CURSORS, {**consumer, "idle_polls": 0, "next_poll_at": self._now()})
            detail = {"event_id": event_id, "replays": replays}
            self._audit_once(delivery.AUDIT_REPLAYED, consumer_id, by, why, detail)
            return True

    def replayed(self, lease: Lease, event_id: str, *, why: str) -> bool:
        """See the port."""
        with self._database.lock:
            if self._held(lease, delivery.RENEW) is None:
                return False
            self._settle_replayed(lease, event_id, why, None)
            return True

    def replayed_in(self, transaction: Transaction, lease: Lease, event_id: str, *, why: str) -> None:
        """See the port."""
        opened = inside(transaction)
        with self._database.lock:
            held = self._held(lease, delivery.RENEW, opened) is not None
            # Where it is settled already, what the observer wrote now must not commit beside it.
            if not (held and self._settle_replayed(lease, event_id, why, opened)):
                raise self._lost(lease, opened)

    def replay_failed(self, lease: Lease, event_id: str, *, failure_class: str) -> bool:
        """See the port."""
        with self._database.lock:
            if self._held(lease, delivery.RENEW) is None:
                return False
            letter = self._database.get(LETTERS, self._letter_key(lease.consumer.consumer_id, event_id))
            if letter is not None and letter["state"] == LetterState.REPLAYING:
                back = {**letter, "state": LetterState.UNRESOLVED.value, "failure_class": failure_class}
                self._database.put(LETTERS, back)
            return True

    def resolve(self, consumer_id: str, event_id: str, by: str, why: str) -> bool:
        """See the port."""
        with self._database.lock:
            letter = self._letter(consumer_id, event_id)
            if letter["state"] == LetterState.RESOLVED:
                return False
            self._settle(letter, by=by, why=why)
            self._audit_once(delivery.AUDIT_RESOLVED, consumer_id, by, why, {"event_id": event_id})
            return True

    def prune_letters(self, older_than: timedelta, limit: int) -> int:
        """See the port."""
        with self._database.lock:
            before = self._now() - older_than
            over = [
                letter["_id"]
                for letter in self._letters(None)
                if letter["state"] == LetterState.RESOLVED and letter["settled_at"] < before
            ][:limit]
            for key in over:
                self._database.delete(LETTERS, key)
        return len(over)

    def _letter(self, consumer_id: str, event_id: str, opened: MemoryTransaction | None = None) -> Document:
        letter = self._database.get(LETTERS, self._letter_key(consumer_id, event_id), opened)
        if letter is None:
            raise LetterNotFoundError(f"consumer {consumer_id!r} has no dead letter {event_id!r}")
        return letter

    def _letter_key(self, consumer_id: str, event_id: str) -> str:
        return join_key(self._tenant_id, letter_key(consumer_id, event_id))

    def _settle_replayed(self, lease: Lease, event_id: str, why: str, opened: MemoryTransaction | None) -> bool:
        """Resolve a letter that waits for its replay; False where it does not any more, or is gone."""
        letter = self._database.get(LETTERS, self._letter_key(lease.consumer.consumer_id, event_id), opened)
        if letter is None or letter["state"] != LetterState.REPLAYING:
            return False
        self._settle(letter, by=lease.consumer.consumer_id, why=why, opened=opened)
        return True
