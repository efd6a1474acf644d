"""What the twin's consumers and dead letters share: finding rows, holding them to an edge, and their audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outbox_core.adapters.memory.audit import MemoryAuditLog
from outbox_core.adapters.memory.documents import storable_document
from outbox_core.adapters.memory.lifecycle_stream import MemoryLifecycleStream
from outbox_core.domain import delivery
from outbox_core.domain.consumer import Lease, LetterState
from outbox_core.domain.delivery import Cursor, Edge, Failing, Fence
from outbox_core.domain.errors import (
    ConsumerNotFoundError,
    ConsumerRetiredError,
    ContentionError,
    LeaseLostError,
)
from outbox_core.domain.identity import join_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from outbox_core.adapters.memory.database import Document, MemoryDatabase, MemoryTransaction
    from outbox_core.domain.limits import Limits

CURSORS = "lifecycle_consumer_cursors"
LETTERS = "lifecycle_dead_letters"
FREE: Mapping[str, Any] = {"lease_owner": "", "lease_until": None}
"""What a row says that nobody holds."""


class ConsumerRows:
    """The rows of one tenant's consumers. Every use stands under the database's lock."""

    def __init__(self, database: MemoryDatabase, tenant_id: str, limits: Limits) -> None:
        self._database = database
        self._tenant_id = tenant_id
        self._limits = limits
        self._audit = MemoryAuditLog(database, tenant_id)
        self._stream = MemoryLifecycleStream(database, tenant_id)

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
            for letter in self._database.documents(LETTERS).values()
            if letter["tenant_id"] == self._tenant_id and consumer_id in {None, letter["consumer_id"]}
        ]

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

    def _settle(self, letter: Document, *, by: str, why: str, opened: MemoryTransaction | None = None) -> None:
        settled = {
            **letter,
            "state": LetterState.RESOLVED.value,
            "settled_at": self._now(),
            "settled_by": by,
            "settled_why": why,
        }
        self._database.put(LETTERS, storable_document(settled), opened)

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
