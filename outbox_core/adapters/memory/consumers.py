"""The consumers of one tenant on the twin: `lifecycle_consumer_cursors` and `lifecycle_dead_letters`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outbox_core.adapters.memory.audit import MemoryAuditLog
from outbox_core.adapters.memory.documents import storable_document
from outbox_core.adapters.memory.lifecycle_documents import consumer_of, cursor_of, event_document, letter_of
from outbox_core.adapters.memory.lifecycle_stream import MemoryLifecycleStream
from outbox_core.adapters.memory.transactions import inside
from outbox_core.domain import delivery
from outbox_core.domain.consumer import Consumer, DeadLetter, Lease, LetterState, Look, Start
from outbox_core.domain.delivery import Cursor, Edge, Failing, Fence
from outbox_core.domain.errors import (
    ConsumerNotFoundError,
    ConsumerRetiredError,
    ContentionError,
    LeaseLostError,
    LetterNotFoundError,
)
from outbox_core.domain.identity import join_key
from outbox_core.domain.lifecycle_event import LifecycleEvent
from outbox_core.ports.consumers import letter_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime, timedelta

    from outbox_core.adapters.memory.database import Document, MemoryDatabase, MemoryTransaction
    from outbox_core.domain.lifecycle_event import StreamEntry
    from outbox_core.domain.limits import Limits
    from outbox_core.ports.transactions import Transaction

CURSORS = "lifecycle_consumer_cursors"
_LETTERS = "lifecycle_dead_letters"
_FREE: Mapping[str, Any] = {"lease_owner": "", "lease_until": None}


class MemoryConsumers:
    """Implements ports.consumers.Consumers."""

    def __init__(self, database: MemoryDatabase, tenant_id: str, limits: Limits) -> None:
        self._database = database
        self._tenant_id = tenant_id
        self._limits = limits
        self._audit = MemoryAuditLog(database, tenant_id)
        self._stream = MemoryLifecycleStream(database, tenant_id)

    # Registration.

    def register(self, consumer_id: str, start: Start, by: str) -> Consumer:
        """See the port."""
        with self._database.lock:
            now, found = self._now(), self._find(consumer_id)
            if found is not None and found.get("retired_at") is None:
                return consumer_of(found)
            document = {
                **(found or {}),
                "_id": self._key(consumer_id),
                "tenant_id": self._tenant_id,
                "consumer_id": consumer_id,
                "start": start.value,
                "last_acked_sequence": None,
                "must_reconcile": found is not None,
                "registered_at": now,
                "retired_at": None,
                "paused_at": None,
                "stopped_for": "",
                "fence": (found or {}).get("fence", 0),
                "failing": None,
                "idle_polls": 0,
                "next_poll_at": now,
                **_FREE,
            }
            self._database.put(CURSORS, storable_document(document))
            self._told(delivery.REGISTER, document, by, "", {"start": start.value})
            return consumer_of(document)

    def look(self, consumer_id: str) -> Look:
        """See the port."""
        with self._database.lock:
            found = self._find(consumer_id)
            replays = any(letter["state"] == LetterState.REPLAYING for letter in self._letters(consumer_id))
            return Look(
                consumer=None if found is None else consumer_of(found),
                head=self._stream.head(),
                now=self._now(),
                replays=replays,
            )

    def all(self) -> Sequence[Consumer]:
        """See the port."""
        with self._database.lock:
            return [consumer_of(document) for document in self._documents()]

    def retire(self, consumer_id: str, by: str, why: str) -> bool:
        """See the port."""
        with self._database.lock:
            found = self._found(consumer_id)
            if found.get("retired_at") is not None:
                return False
            now = self._now()
            for letter in self._letters(consumer_id):
                if letter["state"] != LetterState.RESOLVED:
                    self._settle(letter, by=by, why="its consumer was retired")
            retired = {**found, **self._minted(found), "retired_at": now, "failing": None, **_FREE}
            self._database.put(CURSORS, storable_document(retired))
            self._told(delivery.RETIRE, retired, by, why, {"cursor": str(found.get("last_acked_sequence"))})
            return True

    def set_paused(self, consumer_ids: Iterable[str] | None, *, paused: bool) -> Sequence[str]:
        """See the port."""
        wanted = None if consumer_ids is None else set(consumer_ids)
        with self._database.lock:
            changed = [
                document
                for document in self._documents()
                if document.get("retired_at") is None
                and (wanted is None or document["consumer_id"] in wanted)
                and (document.get("paused_at") is None) is paused
            ]
            now = self._now()
            for document in changed:
                self._database.put(
                    CURSORS, {**document, "paused_at": now if paused else None, "idle_polls": 0, "next_poll_at": now}
                )
        return sorted(document["consumer_id"] for document in changed)

    def require_reconcile(self, consumer_id: str, by: str, why: str) -> None:
        """See the port."""
        with self._database.lock:
            found = self._active(consumer_id)
            asked = {
                **found,
                **self._minted(found),
                **_FREE,
                "must_reconcile": True,
                "failing": None,
                "stopped_for": "",
            }
            self._database.put(CURSORS, {**asked, "next_poll_at": self._now()})
            self._audit_once(delivery.AUDIT_RECONCILE_ASKED, consumer_id, by, why, {})

    def skip(self, consumer_id: str, by: str, why: str) -> int:
        """See the port."""
        with self._database.lock:
            found, head = self._active(consumer_id), self._stream.head()
            skipped = {
                **found,
                **self._moved(delivery.SKIP, head),
                **self._minted(found),
                "must_reconcile": False,
                "stopped_for": "",
                "next_poll_at": self._now(),
                **_FREE,
            }
            self._database.put(CURSORS, skipped)
            self._audit_once(delivery.AUDIT_SKIPPED, consumer_id, by, why, {"head": head})
            return head

    # Under a lease.

    def lease(self, consumer_id: str, owner: str, duration: timedelta) -> Lease | None:
        """See the port."""
        with self._database.lock:
            now, found = self._now(), self._find(consumer_id)
            if found is None or found.get("retired_at") is not None or found.get("paused_at") is not None:
                return None
            longest = max(duration, self._limits.longest_consumer_lease)
            if leased(found, now, longest + self._limits.op_timeout) and found.get("lease_owner") != owner:
                return None
            taken = {
                **found,
                **self._minted(found),
                "lease_owner": owner,
                "lease_until": now + duration,
                "heartbeat_at": now,
            }
            self._database.put(CURSORS, storable_document(taken))
            row = consumer_of(taken)
            # A row that does not decode waits for an operator; nothing could be written under its lease.
            return Lease(consumer=row, fence=row.fence, taken_at=now) if row.lease_owner == owner else None

    def renew(self, lease: Lease, duration: timedelta) -> bool:
        """See the port."""
        with self._database.lock:
            now, held = self._now(), self._held(lease, delivery.RENEW)
            if held is None:
                return False
            until = max(held.get("lease_until") or now, now + duration)
            self._database.put(CURSORS, storable_document({**held, "lease_until": until, "heartbeat_at": now}))
            return True

    def acknowledge(self, lease: Lease, *, read: int | None, sequence: int, superseded: Sequence[str] = ()) -> bool:
        """See the port."""
        edge = delivery.SUPERSEDE if superseded else delivery.ACK
        with self._database.lock:
            held = self._held(lease, edge, read=read)
            if held is None:
                return self._stands_at(lease, sequence)
            self._database.put(CURSORS, {**held, **self._moved(edge, sequence)})
            self._pass_over(lease, superseded, None)
            return True

    def acknowledge_in(
        self, transaction: Transaction, lease: Lease, *, read: int | None, sequence: int, superseded: Sequence[str] = ()
    ) -> None:
        """See the port."""
        opened = inside(transaction)
        edge = delivery.SUPERSEDE if superseded else delivery.ACK
        with self._database.lock:
            held = self._held(lease, edge, opened, read=read)
            if held is None:
                raise self._lost(lease, opened)
            self._database.put(CURSORS, {**held, **self._moved(edge, sequence)}, opened)
            self._pass_over(lease, superseded, opened)

    def fail(self, lease: Lease, *, event_id: str, attempts: int, delay: timedelta, failure_class: str) -> bool:
        """See the port."""
        with self._database.lock:
            held = self._held(lease, delivery.FAIL)
            if held is None:
                return False
            failing = {
                "event_id": event_id,
                "attempts": attempts,
                "next_attempt_at": self._now() + delay,
                "failure_class": failure_class,
            }
            self._database.put(CURSORS, storable_document({**held, "failing": failing}))
            return True

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
            self._database.put(_LETTERS, storable_document(letter))
            self._database.put(CURSORS, {**held, **self._moved(delivery.PARK, entry.sequence)})
            self._told(delivery.PARK, held, "", "", {"event_id": event_id, "attempts": attempts})
            return True

    def reconciled(self, lease: Lease, *, head: int, why: str) -> bool:
        """See the port."""
        with self._database.lock:
            held = self._held(lease, delivery.RECONCILE)
            if held is None:
                return False
            moved = {**held, **self._moved(delivery.RECONCILE, head), "must_reconcile": False, "stopped_for": ""}
            self._database.put(CURSORS, moved)
            self._told(delivery.RECONCILE, held, "", why, {"head": head})
            return True

    def begin(self, lease: Lease) -> bool:
        """See the port."""
        return self.acknowledge(lease, read=None, sequence=0)

    def stop(self, lease: Lease, why: str) -> bool:
        """See the port."""
        return self._change(lease, delivery.STOP, stopped_for=why)

    def rest(self, lease: Lease, *, idle: bool, delay: timedelta) -> bool:
        """See the port."""
        with self._database.lock:
            held = self._held(lease, delivery.REST)
            if held is None:
                row = self._find(lease.consumer.consumer_id) or {}
                given_back = (row.get("fence"), row.get("lease_owner")) == (lease.fence, "")
                return given_back and row.get("retired_at") is None
            polls = held.get("idle_polls", 0) + 1 if idle else 0
            rested = {**held, **_FREE, "idle_polls": polls, "next_poll_at": self._now() + delay}
            self._database.put(CURSORS, storable_document(rested))
            return True

    def wake(self, consumer_ids: Iterable[str]) -> Sequence[str]:
        """See the port."""
        wanted = set(consumer_ids)
        with self._database.lock:
            now, head = self._now(), self._stream.head()
            woken = [
                document
                for document in self._documents()
                if document["consumer_id"] in wanted
                and active(document)
                and not leased(document, now, self._limits.longest_consumer_lease + self._limits.op_timeout)
                and document.get("failing") is None
                and (cursor_of(document.get("last_acked_sequence")) or 0) < head
            ]
            for document in woken:
                self._database.put(CURSORS, {**document, "next_poll_at": now, "idle_polls": 0})
        return sorted(document["consumer_id"] for document in woken)

    # Dead letters.

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
            self._database.put(_LETTERS, {**letter, "state": LetterState.REPLAYING.value, "replays": replays})
            self._database.put(CURSORS, {**consumer, "next_poll_at": self._now()})
            detail = {"event_id": event_id, "replays": replays}
            self._audit_once(delivery.AUDIT_REPLAYED, consumer_id, by, why, detail)
            return True

    def replayed(self, lease: Lease, event_id: str, *, why: str) -> bool:
        """See the port."""
        with self._database.lock:
            return self._replayed(lease, event_id, why, None)

    def replayed_in(self, transaction: Transaction, lease: Lease, event_id: str, *, why: str) -> None:
        """See the port."""
        opened = inside(transaction)
        with self._database.lock:
            if not self._replayed(lease, event_id, why, opened):
                raise self._lost(lease, opened)

    def replay_failed(self, lease: Lease, event_id: str, *, failure_class: str) -> bool:
        """See the port."""
        with self._database.lock:
            if self._held(lease, delivery.RENEW) is None:
                return False
            letter = self._letter(lease.consumer.consumer_id, event_id)
            if letter["state"] == LetterState.REPLAYING:
                back = {**letter, "state": LetterState.UNRESOLVED.value, "failure_class": failure_class}
                self._database.put(_LETTERS, back)
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
                self._database.delete(_LETTERS, key)
        return len(over)

    # For people.

    def lags(self) -> Mapping[str, int]:
        """See the port."""
        with self._database.lock:
            head = self._stream.head()
            waiting = [one for one in self.all() if one.retired_at is None]
        return {one.consumer_id: max(0, head - max(0, one.cursor or 0)) for one in waiting}

    def oldest_unacknowledged(self) -> Mapping[str, datetime]:
        """See the port."""
        found: dict[str, datetime] = {}
        with self._database.lock:
            for consumer_id, lag in self.lags().items():
                cursor = consumer_of(self._found(consumer_id)).cursor
                rows = self._stream.rows_after(max(0, cursor or 0)) if lag else []
                if rows:
                    found[consumer_id] = rows[0]["occurred_at"]
        return found

    def _now(self) -> datetime:
        return self._database.clock.now()

    def _key(self, consumer_id: str) -> str:
        return join_key(self._tenant_id, consumer_id)

    def _find(self, consumer_id: str, opened: MemoryTransaction | None = None) -> Document | None:
        return self._database.get(CURSORS, self._key(consumer_id), opened)

    def _found(self, consumer_id: str) -> Document:
        found = self._find(consumer_id)
        if found is None:
            raise ConsumerNotFoundError(f"tenant {self._tenant_id} has no consumer {consumer_id!r}")
        return found

    def _active(self, consumer_id: str) -> Document:
        found = self._found(consumer_id)
        if found.get("retired_at") is not None:
            raise ConsumerRetiredError(f"consumer {consumer_id!r} is retired; register it again first")
        return found

    def _documents(self) -> list[Document]:
        found = self._database.documents(CURSORS).values()
        own = [document for document in found if document["tenant_id"] == self._tenant_id]
        return sorted(own, key=lambda document: str(document["consumer_id"]))

    def _letters(self, consumer_id: str | None) -> list[Document]:
        return [
            letter
            for letter in self._database.documents(_LETTERS).values()
            if letter["tenant_id"] == self._tenant_id and consumer_id in {None, letter["consumer_id"]}
        ]

    def _letter(self, consumer_id: str, event_id: str, opened: MemoryTransaction | None = None) -> Document:
        key = join_key(self._tenant_id, letter_key(consumer_id, event_id))
        letter = self._database.get(_LETTERS, key, opened)
        if letter is None:
            raise LetterNotFoundError(f"consumer {consumer_id!r} has no dead letter {event_id!r}")
        return letter

    def _held(
        self, lease: Lease, edge: Edge, opened: MemoryTransaction | None = None, *, read: int | None = None
    ) -> Document | None:
        """Return the row where the edge's filter matches it: the fence, not retired, the cursor as it was read."""
        found = self._find(lease.consumer.consumer_id, opened)
        if found is None or found.get("retired_at") is not None:
            return None
        # A lease that was given back, or taken away, is void although the fence is the same.
        ours = (lease.fence, lease.consumer.lease_owner)
        if edge.fence is Fence.HOLD and (found.get("fence"), found.get("lease_owner")) != ours:
            return None
        if edge.cursor is not Cursor.EVENT:
            return found
        # A cursor that is no number is reconciled; nothing moves on from it.
        stands = found.get("last_acked_sequence") == read and (read is None or read >= 0)
        return found if stands else None

    def _stands_at(self, lease: Lease, sequence: int) -> bool:
        """Say whether a first try of a write under this lease has moved the cursor to where it was to go."""
        held = self._held(lease, delivery.RENEW)
        return held is not None and held.get("last_acked_sequence") == sequence

    @staticmethod
    def _minted(found: Document) -> dict[str, Any]:
        fence = found.get("fence", 0)
        return {"fence": fence + 1 if isinstance(fence, int) else 1}

    def _moved(self, edge: Edge, sequence: int) -> dict[str, Any]:
        """Return what an edge that moves the cursor writes."""
        moved: dict[str, Any] = {"last_acked_sequence": sequence}
        return moved | {"failing": None} if edge.failing is Failing.CLEAR else moved

    @staticmethod
    def _lost(lease: Lease, opened: MemoryTransaction | None) -> LeaseLostError:
        if opened is not None:
            opened.undo()
        return LeaseLostError(f"consumer {lease.consumer.consumer_id}: the lease, or the cursor, is another's now")

    def _change(self, lease: Lease, edge: Edge, **fields: object) -> bool:
        with self._database.lock:
            held = self._held(lease, edge)
            if held is None:
                return False
            self._database.put(CURSORS, storable_document({**held, **fields}))
            return True

    def _replayed(self, lease: Lease, event_id: str, why: str, opened: MemoryTransaction | None) -> bool:
        if self._held(lease, delivery.RENEW, opened) is None:
            return False
        letter = self._letter(lease.consumer.consumer_id, event_id, opened)
        if letter["state"] == LetterState.REPLAYING:
            self._settle(letter, by=lease.consumer.consumer_id, why=why, opened=opened)
        return True

    def _settle(self, letter: Document, *, by: str, why: str, opened: MemoryTransaction | None = None) -> None:
        settled = {
            **letter,
            "state": LetterState.RESOLVED.value,
            "settled_at": self._now(),
            "settled_by": by,
            "settled_why": why,
        }
        self._database.put(_LETTERS, storable_document(settled), opened)

    def _pass_over(self, lease: Lease, event_ids: Sequence[str], opened: MemoryTransaction | None) -> None:
        if event_ids:
            detail: dict[str, str | int] = {"event_ids": ",".join(event_ids), "count": len(event_ids)}
            self._told(delivery.SUPERSEDE, {"consumer_id": lease.consumer.consumer_id}, "", "", detail, opened)

    def _told(
        self,
        edge: Edge,
        row: Mapping[str, Any],
        by: str,
        why: str,
        detail: Mapping[str, str | int],
        opened: MemoryTransaction | None = None,
    ) -> None:
        self._audit_once(edge.audit, row["consumer_id"], by, why, detail, opened)

    def _audit_once(
        self,
        code: str,
        consumer_id: str,
        by: str,
        why: str,
        detail: Mapping[str, str | int],
        opened: MemoryTransaction | None = None,
    ) -> None:
        number = len(self._database.documents("run_audit"))
        what = join_key(consumer_id, str(number))
        if not self._audit.write(code, consumer_id, what, by, why, {"consumer_id": consumer_id, **detail}, opened):
            raise ContentionError("two audit rows met")


def active(document: Document) -> bool:
    """Say whether a stored registration takes part."""
    return document.get("retired_at") is None and document.get("paused_at") is None


def leased(document: Document, now: datetime, reach: timedelta) -> bool:
    """Say whether somebody holds a registration's lease; one that ends further ahead than `reach` is nobody's."""
    until = document.get("lease_until")
    return until is not None and now < until <= now + reach
