"""Leases and cursors: every write is fenced, and one that moves the cursor demands where it was read (L06, L07)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymongo import ReturnDocument

from outbox_core.adapters.mongo.consumer_edges import (
    ACTIVE,
    ahead,
    edge_filter,
    edge_update,
    lease_is_over,
    literal,
    plus_one,
)
from outbox_core.adapters.mongo.consumer_rows import BY_ID, ConsumerRows, written_at
from outbox_core.adapters.mongo.documents import raw
from outbox_core.adapters.mongo.edges import NOW
from outbox_core.adapters.mongo.errors import translated
from outbox_core.adapters.mongo.lifecycle_documents import consumer_of
from outbox_core.domain import delivery
from outbox_core.domain.consumer import Lease
from outbox_core.domain.delivery import MAX_FAILURE_CLASS_CHARS, MAX_WHY_CHARS
from outbox_core.domain.errors import InvariantError, LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from outbox_core.ports.transactions import Transaction


class LeasedRows(ConsumerRows):
    """What the process that holds the lease does."""

    def lease(self, consumer_id: str, owner: str, duration: timedelta) -> Lease | None:
        """See the port; one write, so that of two processes one has it."""
        if not owner:
            raise InvariantError("a lease without an owner would be one that was given back")
        free = {
            "$or": [
                {"$eq": ["$lease_owner", literal(owner)]},
                lease_is_over(max(duration, self._limits.longest_consumer_lease) + self._limits.op_timeout),
            ]
        }
        query = {**edge_filter(delivery.LEASE, self._tenant, self._key(consumer_id)), **ACTIVE, "$expr": free}
        update = edge_update(delivery.LEASE, lease_owner=literal(owner), lease_until=ahead(duration), heartbeat_at=NOW)
        with translated():
            found = raw(self._cursors).find_one_and_update(
                query, update, return_document=ReturnDocument.AFTER, hint=BY_ID
            )
        if found is None:
            return None
        row = consumer_of(found)
        if row.lease_owner != owner:
            # The row does not decode: it waits for an operator, and nothing could be written under this lease.
            return None
        return Lease(consumer=row, fence=row.fence, taken_at=written_at(found))

    def renew(self, lease: Lease, duration: timedelta) -> bool:
        """See the port."""
        later = {"$max": ["$lease_until", ahead(duration)]}
        return self._move(delivery.RENEW, lease, edge_update(delivery.RENEW, lease_until=later, heartbeat_at=NOW))

    def acknowledge(self, lease: Lease, *, read: int | None, sequence: int, superseded: Sequence[str] = ()) -> bool:
        """See the port; one write, and a transaction only where there is something to audit."""
        if not superseded:
            update = edge_update(delivery.ACK, number=sequence)
            return self._move(delivery.ACK, lease, update, read=read, done=lambda row: row.cursor == sequence)

        def write(transaction: Transaction) -> None:
            self.acknowledge_in(transaction, lease, read=read, sequence=sequence, superseded=superseded)

        return self._under_lease(write) or self._was_done(lease, lambda row: row.cursor == sequence)

    def acknowledge_in(
        self, transaction: Transaction, lease: Lease, *, read: int | None, sequence: int, superseded: Sequence[str] = ()
    ) -> None:
        """See the port."""
        edge = delivery.SUPERSEDE if superseded else delivery.ACK
        consumer_id, update = lease.consumer.consumer_id, edge_update(edge, number=sequence)
        at = self._move_in(transaction, edge, consumer_id, update, lease=lease, read=read)
        if at is None:
            raise LeaseLostError(f"{consumer_id}: its lease, or its cursor, is another's now")
        if superseded:
            detail: dict[str, str | int] = {"event_ids": ",".join(superseded), "count": len(superseded)}
            self._audit(transaction, edge.audit, consumer_id, at, detail)

    def fail(self, lease: Lease, *, event_id: str, attempts: int, delay: timedelta, failure_class: str) -> bool:
        """See the port; a repeat writes the same count again."""
        failing = {
            "event_id": literal(event_id),
            "attempts": attempts,
            "next_attempt_at": ahead(delay),
            "failure_class": literal(failure_class[:MAX_FAILURE_CLASS_CHARS]),
        }
        return self._move(delivery.FAIL, lease, edge_update(delivery.FAIL, failing=failing))

    def reconciled(self, lease: Lease, *, head: int, why: str) -> bool:
        """See the port; a repeat finds the audit row of this lease and this head."""
        edge, consumer_id = delivery.RECONCILE, lease.consumer.consumer_id
        # The time too: a row that was lost and registered anew counts its fences from the beginning.
        key = f"{edge.name}|{consumer_id}|{lease.fence}|{lease.taken_at:%Y%m%dT%H%M%S%f}|{head}"
        update = edge_update(edge, number=head, must_reconcile=False, stopped_for="", idle_polls=0)

        def write(transaction: Transaction) -> None:
            at = self._move_in(transaction, edge, consumer_id, update, lease=lease)
            if at is None:
                raise LeaseLostError(f"{consumer_id}: its lease is another's now")
            if not self._audit(transaction, edge.audit, consumer_id, at, {"head": head}, why=why, key=key):
                raise _DoneBeforeError

        try:
            return self._under_lease(write)
        except _DoneBeforeError:
            return True

    def begin(self, lease: Lease) -> bool:
        """See the port."""
        update = edge_update(delivery.BEGIN, number=0)
        return self._move(delivery.BEGIN, lease, update, done=lambda row: row.cursor == 0)

    def stop(self, lease: Lease, why: str) -> bool:
        """See the port."""
        return self._move(delivery.STOP, lease, edge_update(delivery.STOP, stopped_for=literal(why[:MAX_WHY_CHARS])))

    def rest(self, lease: Lease, *, idle: bool, delay: timedelta) -> bool:
        """See the port."""
        polls = plus_one("idle_polls") if idle else 0
        update = edge_update(delivery.REST, idle_polls=polls, next_poll_at=ahead(delay))
        return self._move(delivery.REST, lease, update, done=lambda _row: True, given_back=True)


class _DoneBeforeError(Exception):
    """A first try of the same call has committed."""
