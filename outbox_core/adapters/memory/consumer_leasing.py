"""Leases and cursors on the twin: every write is fenced, and one that moves the cursor demands where it was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.adapters.memory.consumer_rows import CURSORS, FREE, ConsumerRows, leased
from outbox_core.adapters.memory.documents import storable_document
from outbox_core.adapters.memory.lifecycle_documents import consumer_of
from outbox_core.adapters.memory.transactions import inside
from outbox_core.domain import delivery
from outbox_core.domain.consumer import Lease

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from outbox_core.adapters.memory.database import MemoryTransaction
    from outbox_core.ports.transactions import Transaction


class LeasedRows(ConsumerRows):
    """What the process that holds the lease does."""

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

    def reconciled(self, lease: Lease, *, head: int, why: str) -> bool:
        """See the port."""
        with self._database.lock:
            held = self._held(lease, delivery.RECONCILE)
            if held is None:
                return False
            done = {"must_reconcile": False, "stopped_for": "", "idle_polls": 0}
            moved = {**held, **self._moved(delivery.RECONCILE, head), **done}
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
            rested = {**held, **FREE, "idle_polls": polls, "next_poll_at": self._now() + delay}
            self._database.put(CURSORS, storable_document(rested))
            return True

    def _pass_over(self, lease: Lease, event_ids: Sequence[str], opened: MemoryTransaction | None) -> None:
        if event_ids:
            detail: dict[str, str | int] = {"event_ids": ",".join(event_ids), "count": len(event_ids)}
            self._told(delivery.SUPERSEDE, {"consumer_id": lease.consumer.consumer_id}, "", "", detail, opened)
