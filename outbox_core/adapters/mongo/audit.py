"""The audit of one tenant on run_audit."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from bson import ObjectId
from pydantic import Field

from outbox_core.adapters.mongo.documents import StoredDocument, Text, decode, raw
from outbox_core.adapters.mongo.errors import DUPLICATE_KEY, translated
from outbox_core.adapters.mongo.inserts import insert_all
from outbox_core.adapters.mongo.transactions import session_of
from outbox_core.domain.delivery import MAX_WHY_CHARS
from outbox_core.domain.errors import ContentionError, InvalidInputError
from outbox_core.domain.identity import join_key, require_own
from outbox_core.ports.audit import AuditRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pymongo.database import Database

    from outbox_core.domain.lifecycle_event import LifecycleEvent
    from outbox_core.ports.transactions import Transaction

AUDIT = "run_audit"


class AuditDocument(StoredDocument):
    """A row in run_audit."""

    id: str = Field(alias="_id")
    tenant_id: str
    code: str
    subject: Text = ""
    at: datetime
    by: Text = ""
    why: Text = ""
    detail: dict[str, str | int] = {}


class MongoAuditLog:
    """Implements ports.audit.AuditLog."""

    def __init__(self, database: Database[dict[str, Any]], tenant_id: str) -> None:
        self._tenant = tenant_id
        self._audit = database[AUDIT]

    def record(self, event: LifecycleEvent, by: str, why: str, transaction: Transaction) -> None:
        """See the port."""
        require_own(self._tenant, event.tenant_id, "an event")
        detail: dict[str, str | int] = {"event_id": event.event_id, "sequence": event.sequence}
        if not write_audit(
            transaction,
            self._tenant,
            key=event.event_id,
            code=event.event_type,
            subject=event.task_id,
            at=event.occurred_at,
            by=by,
            why=why,
            detail=detail,
        ):
            raise ContentionError(f"the change {event.event_id} is audited already")

    def rows(self, *, code: str | None = None, subject: str | None = None, limit: int = 100) -> Sequence[AuditRow]:
        """See the port; what does not decode is left out."""
        asked = {name: value for name, value in (("code", code), ("subject", subject)) if value is not None}
        query = {"tenant_id": self._tenant, **asked}
        with translated():
            found = raw(self._audit).find(query).sort([("at", -1), ("_id", -1)]).limit(limit).batch_size(limit)
            documents = list(found)
        rows = []
        for document in documents:
            try:
                stored = AuditDocument.model_validate(decode(document))
            except ValueError:
                continue
            rows.append(AuditRow(audit_id=stored.id, **stored.model_dump(exclude={"id"})))
        return rows


def fresh_key() -> str:
    """Return the key of an audit row whose write nothing repeats: the consumer's row says whether it was done."""
    return str(ObjectId())


def write_audit(  # noqa: PLR0913 - the fields of a row
    transaction: Transaction,
    tenant_id: str,
    *,
    key: str,
    code: str,
    subject: str,
    at: datetime,
    by: str = "",
    why: str = "",
    detail: Mapping[str, str | int],
) -> bool:
    """Write one row in a transaction; False where one is there under its key, and the transaction is undone."""
    document = {
        "_id": join_key(tenant_id, key),
        "tenant_id": tenant_id,
        "code": code,
        "subject": subject,
        "at": at,
        "by": by[:MAX_WHY_CHARS],
        "why": why[:MAX_WHY_CHARS],
        "detail": dict(detail),
    }
    refused = insert_all(transaction.database[AUDIT], [document], session_of(transaction))
    if any(rejection.code != DUPLICATE_KEY for rejection in refused):
        raise InvalidInputError(f"the audit row of {subject} cannot be stored: {refused[0].reason}")
    return not refused
