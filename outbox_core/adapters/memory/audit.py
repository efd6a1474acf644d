"""The audit of one tenant on the twin: `run_audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.adapters.memory.documents import Fields, storable_document
from outbox_core.adapters.memory.transactions import inside
from outbox_core.domain.errors import ContentionError
from outbox_core.domain.identity import join_key, require_own
from outbox_core.ports.audit import AuditRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outbox_core.adapters.memory.database import Document, MemoryDatabase, MemoryTransaction
    from outbox_core.domain.lifecycle_event import LifecycleEvent
    from outbox_core.ports.transactions import Transaction

_AUDIT = "run_audit"


class MemoryAuditLog:
    """Implements ports.audit.AuditLog."""

    def __init__(self, database: MemoryDatabase, tenant_id: str) -> None:
        self._database = database
        self._tenant_id = tenant_id

    def record(self, event: LifecycleEvent, by: str, why: str, transaction: Transaction) -> None:
        """See the port."""
        require_own(self._tenant_id, event.tenant_id, "an event")
        opened = inside(transaction)
        detail: dict[str, str | int] = {"event_id": event.event_id, "sequence": event.sequence}
        with self._database.lock:
            if not self.write(event.event_type, event.task_id, event.event_id, by, why, detail, opened):
                if opened is not None:
                    opened.undo()
                raise ContentionError(f"the change {event.event_id} is audited already")

    def write(
        self,
        code: str,
        subject: str,
        what: str,
        by: str,
        why: str,
        detail: Mapping[str, str | int],
        transaction: MemoryTransaction | None = None,
    ) -> bool:
        """Write one row, under an id of its code and of what it tells; False where it is there."""
        document = {
            "_id": join_key(self._tenant_id, code, what),
            "tenant_id": self._tenant_id,
            "code": code,
            "subject": subject,
            "at": self._database.clock.now(),
            "by": by,
            "why": why,
            "detail": dict(detail),
        }
        return self._database.insert(_AUDIT, storable_document(document), transaction) is None

    def rows(self, *, code: str | None = None, subject: str | None = None, limit: int = 100) -> Sequence[AuditRow]:
        """See the port."""
        with self._database.lock:
            found = [
                document
                for document in reversed(list(self._database.documents(_AUDIT).values()))
                if document["tenant_id"] == self._tenant_id
                and code in {None, document["code"]}
                and subject in {None, document["subject"]}
            ]
        # Of one time, what was written last comes first.
        found.sort(key=lambda document: document["at"], reverse=True)
        return [_row(document) for document in found[:limit]]


def _row(document: Document) -> AuditRow:
    fields = Fields(document)
    return AuditRow(
        tenant_id=fields.text("tenant_id", None),
        audit_id=fields.text("_id", None),
        code=fields.text("code", None),
        subject=fields.text("subject"),
        at=fields.instant("at"),
        by=fields.text("by"),
        why=fields.text("why"),
        detail=fields.mapping("detail"),
    )
